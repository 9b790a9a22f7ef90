#pragma once

#include <string>
#include <string_view>

namespace headq {

// What the page of a diagnosis is put together from.
struct PageParts {
  std::string_view page;     // HTML with {{...}} where the others go
  std::string_view style;    // CSS
  std::string script;        // draws the report from the document
  std::string_view library;  // D3; empty where the build found none
  std::string_view licence;  // of the library
};

// The parts that were compiled in (src/cli/report and CMake's HEADQ_D3).
const PageParts& installed_page_parts();

// Throws Error(kUnsupported) when the parts have no chart library.
void check_page_parts(const PageParts& parts);

// The report as one HTML file that needs nothing else and asks no network: the style, the library,
// the JSON document (to_json()) and the script that draws it. Nothing in the document can end its
// element or run, whatever its strings hold, and the page's content security policy lets no script
// run but these two. Throws what check_page_parts() throws, and Error(kInvalidArgument) for a
// document that is no JSON.
std::string to_page(const std::string& json, const PageParts& parts);

}  // namespace headq
