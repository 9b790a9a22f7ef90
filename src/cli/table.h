#pragma once

#include <string>
#include <vector>

namespace headq {

// Text in columns: the first one to the left, the others to the right, two spaces between them.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { add_row(std::move(header)); }

  // As many cells as the header has; UTF-8, one column a code point.
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // The header, a rule, and the rows; every line ends with a newline and none with a space.
  std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace headq
