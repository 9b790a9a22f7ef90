#pragma once

#include <optional>
#include <string>

#include "diagnose/diagnosis.h"
#include "runner/full_model.h"

namespace headq {

// What a diagnosis was made of.
struct DiagnosisSource {
  std::string model;  // names without folders
  std::string text;
  int n_ctx = 0;
  int n_calibration = 0;  // chunks
  int n_chunks = 0;
  int window = 0;
  int sinks = 0;
  int n_replicates = 0;
  uint64_t seed = 0;
};

// full_model: experiment 6, or nothing when it was not run.
//
// The report as JSON (docs/diagnose.md has the schema) and as tables for people. Both depend on
// their arguments alone.
std::string to_json(const DiagnosisSource& source, const Diagnosis& diagnosis,
                    const std::optional<FullModel>& full_model);
std::string to_tables(const DiagnosisSource& source, const Diagnosis& diagnosis,
                      const std::optional<FullModel>& full_model);

}  // namespace headq
