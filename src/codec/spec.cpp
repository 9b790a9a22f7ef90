#include "headq/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "headq/error.h"

namespace headq {
namespace {

constexpr int kMaxWindow = 4096;
constexpr int kMaxSinks = 64;

// Reads a spec from left to right; every failure names the whole text.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), rest_(text) {}

  bool accept(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  uint64_t number(std::string_view what, uint64_t lo, uint64_t hi) {
    uint64_t value = 0;
    const auto [ptr, ec] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (ec != std::errc() || value < lo || value > hi) {
      fail(fmt::format("{} must be a whole number from {} to {}", what, lo, hi));
    }
    rest_.remove_prefix(static_cast<size_t>(ptr - rest_.data()));
    return value;
  }

  double real(std::string_view what, double lo, double hi) {
    double value = 0.0;
    const auto [ptr, ec] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value,
                                           std::chars_format::fixed);
    if (ec != std::errc() || !(value >= lo && value <= hi)) {
      fail(fmt::format("{} must be a number from {} to {}", what, lo, hi));
    }
    rest_.remove_prefix(static_cast<size_t>(ptr - rest_.data()));
    return value;
  }

  bool at_end() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }

  [[noreturn]] void fail(std::string_view why) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("codec spec '{}': {}", text_, why));
  }

 private:
  std::string_view text_;
  std::string_view rest_;
};

void parse_base(Parser& in, CodecSpec& spec) {
  if (in.accept("dense")) return;
  if (in.accept("kivi")) {
    spec.base = BaseKind::kKivi;
    spec.bits = static_cast<int>(in.number("bits of kivi", 2, 8));
    if (spec.bits > 4 && spec.bits != 8) in.fail("kivi has 2, 3, 4 or 8 bits");
    if (spec.bits <= 4 && in.accept("w")) {
      spec.wide = static_cast<int>(in.number("channels with twice the bits", 1, kMaxWide));
    }
    return;
  }
  if (in.accept("token")) {
    spec.base = BaseKind::kToken;
    spec.bits = static_cast<int>(in.number("bits of token", 2, 4));
    if (spec.bits == 3) in.fail("token has 2 or 4 bits");
    spec.hadamard = in.accept("h");
    spec.centred = in.accept("c");
    return;
  }
  in.fail("unknown codec; there are dense, kivi2, kivi3, kivi4, kivi8, token2, token4, nib");
}

void parse_seed(Parser& in, CodecSpec& spec) {
  if (in.accept(":")) spec.seed = in.number("seed of @random", 0, UINT64_MAX);
}

void parse_random_basis(Parser& in, CodecSpec& spec) {
  spec.side_basis = SideBasis::kRandom;
  parse_seed(in, spec);
}

void parse_nib(Parser& in, CodecSpec& spec) {
  spec.base = BaseKind::kNib;
  spec.rate = in.real("rate of nib", kMinRate, kMaxRate);
  if (in.accept("@random")) parse_random_basis(in, spec);
  if (in.accept("-last")) {
    spec.wrong_sign = static_cast<int>(in.number("nibbles of the wrong sign", 1, 512));
  }
  if (!in.at_end()) in.fail(fmt::format("unexpected '{}'", in.rest()));
}

void parse_a2(Parser& in, CodecSpec& spec) {
  if (spec.base != BaseKind::kKivi || spec.bits != 2 || spec.wide != 0) {
    in.fail("'+a2' refines the values of kivi2 only");
  }
  spec.refined = TokenChoice::kPaid;
  if (in.accept("@random")) {
    spec.refined = TokenChoice::kRandom;
    parse_seed(in, spec);
  }
  if (!in.at_end()) in.fail(fmt::format("unexpected '{}'", in.rest()));
}

void parse_side(Parser& in, CodecSpec& spec) {
  if (in.at_end()) return;
  if (in.accept("+a2")) return parse_a2(in, spec);
  if (in.accept("-")) {
    spec.side_sign = -1;
  } else if (!in.accept("+")) {
    in.fail(fmt::format("unexpected '{}'", in.rest()));
  }
  if (!in.accept("hq")) in.fail("a side code is written hq<rank>x4");
  if (spec.is_dense()) in.fail("dense keys leave no residual for a side code");
  spec.side_rank = static_cast<int>(in.number("rank of the side code", 1, kMaxSideRank));
  if (!in.accept("x4")) in.fail("the side code has 4 bits: hq<rank>x4");
  if (in.accept("@random")) {
    parse_random_basis(in, spec);
  } else if (in.accept("@key")) {
    spec.side_basis = SideBasis::kKey;
  } else {
    in.accept("@query");
  }
  if (!in.at_end()) in.fail(fmt::format("unexpected '{}'", in.rest()));
}

CodecSpec key_spec(std::string_view text) {
  const CodecSpec spec = CodecSpec::parse(text);
  if (spec.refined != TokenChoice::kNone) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("codec spec '{}': '+a2' is for values only", text));
  }
  return spec;
}

CodecSpec value_spec(std::string_view text) {
  const CodecSpec spec = CodecSpec::parse(text);
  if (spec.side_rank != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("codec spec '{}': a side code corrects scores, values have none", text));
  }
  if (spec.wide != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("codec spec '{}': wide channels ('w') are for keys only", text));
  }
  if (spec.wrong_sign != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("codec spec '{}': the control '-last' is for keys only", text));
  }
  if (spec.centred) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("codec spec '{}': centring ('c') is for keys only", text));
  }
  return spec;
}

}  // namespace

bool CodecSpec::needs_profile() const {
  if (is_nib()) return true;
  const bool side_needs = side_rank != 0 && side_basis != SideBasis::kRandom;
  const bool split_needs = base == BaseKind::kKivi && (bits == 3 || wide != 0);
  return side_needs || split_needs || centred;
}

CodecSpec CodecSpec::parse(std::string_view text) {
  Parser in(text);
  CodecSpec spec;
  if (in.accept("nib")) {
    parse_nib(in, spec);
    return spec;
  }
  parse_base(in, spec);
  parse_side(in, spec);
  return spec;
}

std::string CodecSpec::to_string() const {
  const auto random_text = [this] {
    return seed == CodecSpec{}.seed ? std::string("@random") : fmt::format("@random:{}", seed);
  };
  if (is_nib()) {
    std::string out = fmt::format("nib{}", rate);
    if (side_basis == SideBasis::kRandom) out += random_text();
    if (wrong_sign != 0) out += fmt::format("-last{}", wrong_sign);
    return out;
  }
  std::string out = "dense";
  if (base == BaseKind::kKivi) out = fmt::format("kivi{}", bits);
  if (wide != 0) out += fmt::format("w{}", wide);
  if (base == BaseKind::kToken) {
    out = fmt::format("token{}{}{}", bits, hadamard ? "h" : "", centred ? "c" : "");
  }
  if (refined != TokenChoice::kNone) out += "+a2";
  if (refined == TokenChoice::kRandom) out += random_text();
  if (side_rank != 0) {
    out += fmt::format("{}hq{}x4", side_sign > 0 ? '+' : '-', side_rank);
    if (side_basis == SideBasis::kKey) out += "@key";
    if (side_basis == SideBasis::kRandom) out += random_text();
  }
  return out;
}

KvSpec KvSpec::parse(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    return {key_spec(text.substr(0, slash)), value_spec(text.substr(slash + 1))};
  }
  KvSpec kv{CodecSpec::parse(text), {}};
  if (kv.k.is_nib()) {
    kv.v = kv.k;
    kv.v.wrong_sign = 0;
    return kv;
  }
  if (kv.k.refined != TokenChoice::kNone) {
    kv.v = kv.k;
    kv.k = {.base = kv.v.base, .bits = kv.v.bits};
    return kv;
  }
  kv.v = {.base = kv.k.base, .bits = kv.k.bits, .hadamard = kv.k.hadamard};
  return kv;
}

std::string KvSpec::to_string() const { return k.to_string() + "/" + v.to_string(); }

const KvSpec& CacheSpec::layer(int il) const {
  const auto it = layers.find(il);
  return it != layers.end() ? it->second : kv;
}

std::vector<KvSpec> CacheSpec::all() const {
  std::vector<KvSpec> out = {kv};
  for (const auto& [il, spec] : layers) out.push_back(spec);
  return out;
}

bool CacheSpec::needs_profile() const {
  const std::vector<KvSpec> specs = all();
  return std::any_of(specs.begin(), specs.end(), [](const KvSpec& spec) {
    return spec.k.needs_profile() || spec.v.needs_profile();
  });
}

void CacheSpec::parse_layers(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    int il = -1;
    const auto [ptr, ec] = std::from_chars(item.data(), item.data() + item.size(), il);
    const size_t used = static_cast<size_t>(ptr - item.data());
    if (ec != std::errc() || il < 0 || used >= item.size() || item[used] != ':') {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer override '{}' is not <layer>:<K/V>", item));
    }
    if (!layers.emplace(il, KvSpec::parse(item.substr(used + 1))).second) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("layer {} is overridden twice", il));
    }
  }
}

void CacheSpec::validate() const {
  if (window < 0 || window > kMaxWindow) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("window {} is not in 0..{}", window, kMaxWindow));
  }
  if (sinks < 0 || sinks > kMaxSinks) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("sinks {} is not in 0..{}", sinks, kMaxSinks));
  }
}

}  // namespace headq
