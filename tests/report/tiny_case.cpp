// tiny_case DIR: writes a tiny model and a text for it into DIR and prints the two paths.

#include <fstream>
#include <iostream>

#include "models/tiny_models.h"

int main(int argc, char** argv) {
  using namespace headq::testing;
  if (argc != 2) return 2;
  const std::string text = std::string(argv[1]) + "/tiny text.txt";
  std::ofstream out(text);
  out << tiny_text(800, 5) << "\n";
  if (!out.flush()) return 1;
  std::cout << write_tiny_model({.family = TinyFamily::kLlama, .n_layer = 3}, argv[1]) << "\n"
            << text << "\n";
}
