#include "codec/codec.h"

#include <algorithm>
#include <cstdlib>

namespace headq {
namespace {

int largest(std::span<const int8_t, 16> table) {
  int out = 0;
  for (int x : table) out = std::max(out, std::abs(x));
  return out;
}

}  // namespace

void ValueSums::add(int new_group, int new_coord, float new_scale, std::span<const int8_t, 16> new_table) {
  constexpr int kMostOfSum = 127;
  for (size_t i = 0; i < n(); ++i) {
    if (coord[i] != new_coord || scale[i] != new_scale || group[2 * i + 1] >= 0) continue;
    int8_t* tables = table.data() + i * 32;
    if (largest(std::span<const int8_t, 16>(tables, 16)) + largest(new_table) > kMostOfSum) continue;
    group[2 * i + 1] = new_group;
    std::copy(new_table.begin(), new_table.end(), tables + 16);
    return;
  }
  group.insert(group.end(), {new_group, -1});
  coord.push_back(new_coord);
  scale.push_back(new_scale);
  table.insert(table.end(), new_table.begin(), new_table.end());
  table.insert(table.end(), 16, 0);
}

}  // namespace headq
