#include "cli/table.h"

#include <algorithm>
#include <numeric>

namespace headq {
namespace {

constexpr size_t kGap = 2;

// Code points of a UTF-8 text: every byte but the continuation ones starts one.
size_t width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

std::string Table::to_string() const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], width(row.at(i)));
  }
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string padding(widths[i] - width(rows_[r][i]), ' ');
      if (i > 0) line += std::string(kGap, ' ');
      line += i == 0 ? rows_[r][i] + padding : padding + rows_[r][i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    if (r == 0) {
      const size_t total =
          std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1));
      out += std::string(total, '-') + "\n";
    }
  }
  return out;
}

}  // namespace headq
