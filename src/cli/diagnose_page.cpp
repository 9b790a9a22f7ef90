#include "cli/diagnose_page.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/file.h"
#include "core/sha256.h"
#include "headq/error.h"

namespace headq {

namespace report_text {
// Defined in the file that headq_embed_text() makes.
extern const std::string_view kPage, kStyle, kFormat, kCharts, kFigures, kTables, kSummary, kMain;
extern const std::string_view kD3, kD3Licence;
}  // namespace report_text

namespace {

// RFC 4648, section 4, for as many bytes as the hex digits spell.
std::string base64_of_hex(const std::string& hex) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < hex.size(); at += 6) {
    std::string three = hex.substr(at, 6);
    const size_t n_bytes = three.size() / 2;
    three.resize(6, '0');
    const unsigned long bits = std::stoul(three, nullptr, 16);
    for (size_t i = 0; i < 4; ++i) {
      out += i <= n_bytes ? kDigits[(bits >> (18 - 6 * i)) & 63] : '=';
    }
  }
  return out;
}

// The source expression of a content security policy that allows exactly this text.
std::string hash_source(std::string_view text) {
  return fmt::format("'sha256-{}'", base64_of_hex(sha256_hex(as_bytes(std::string(text)))));
}

// For text between tags.
std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// The document without white space and in ASCII. Its strings are the only place where '<' can
// stand, and there it may be spelled as an escape; so no string ends the element that holds it.
std::string embedded_json(const std::string& json) {
  std::string compact;
  try {
    compact = nlohmann::ordered_json::parse(json).dump(-1, ' ', true);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("not a JSON document: {}", error.what()));
  }
  std::string out;
  for (char c : compact) {
    if (c == '<' || c == '>' || c == '&') {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += c;
    }
  }
  return out;
}

// template_text with each {{name}} replaced; what is put in is not looked at again.
std::string fill(std::string_view template_text,
                 std::initializer_list<std::pair<std::string_view, std::string_view>> values) {
  std::string out;
  while (!template_text.empty()) {
    const size_t open = template_text.find("{{");
    out += template_text.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = template_text.find("}}", open);
    const std::string_view name = template_text.substr(open + 2, close - open - 2);
    for (const auto& [key, value] : values) {
      if (key == name) out += value;
    }
    template_text.remove_prefix(close + 2);
  }
  return out;
}

}  // namespace

const PageParts& installed_page_parts() {
  using namespace report_text;
  static const PageParts parts = {
      .page = kPage,
      .style = kStyle,
      .script = fmt::format("{}{}{}{}{}{}", kFormat, kCharts, kFigures, kTables, kSummary, kMain),
      .library = kD3,
      .licence = kD3Licence};
  return parts;
}

void check_page_parts(const PageParts& parts) {
  if (parts.library.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "this headq cannot write HTML reports: the chart library D3 was not there when it "
                "was built (Debian: node-d3; CMake: HEADQ_D3)");
  }
}

std::string to_page(const std::string& json, const PageParts& parts) {
  check_page_parts(parts);
  const std::string policy = fmt::format(
      "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; style-src {}; "
      "script-src {} {}",
      hash_source(parts.style), hash_source(parts.library), hash_source(parts.script));
  const std::string document = embedded_json(json);
  const std::string licence = escape_html(parts.licence);
  return fill(parts.page, {{"policy", policy},
                           {"style", parts.style},
                           {"licence", licence},
                           {"library", parts.library},
                           {"document", document},
                           {"script", parts.script}});
}

}  // namespace headq
