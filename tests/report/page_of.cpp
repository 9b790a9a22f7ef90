// page_of: the page of the JSON document on standard input, on standard output. Lets tests give the
// page documents that no model makes.

#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "cli/diagnose_page.h"

int main() {
  const std::string json((std::istreambuf_iterator<char>(std::cin)),
                         std::istreambuf_iterator<char>());
  try {
    std::cout << headq::to_page(json, headq::installed_page_parts());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "page_of: %s\n", error.what());
    return 1;
  }
  return std::cout.flush() ? 0 : 1;
}
