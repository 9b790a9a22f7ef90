#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runner/full_model.h"

namespace headq {

// Experiment 6 of a diagnosis: its part of the JSON report (docs/diagnose.md has the schema), and as
// tables for people.
nlohmann::ordered_json full_model_json(const FullModel& full);
std::string full_model_tables(const FullModel& full);

}  // namespace headq
