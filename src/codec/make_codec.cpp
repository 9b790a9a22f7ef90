#include <fmt/format.h>

#include "codec/a2_codec.h"
#include "codec/codec.h"
#include "codec/nib_codec.h"
#include "codec/scalar_codec.h"
#include "codec/transform.h"
#include "headq/error.h"

namespace headq {
namespace {

constexpr int kKiviValueChannels = 64;
constexpr int kTokenChannels = 32;

void check(const CodecSpec& spec, int head_dim, const HeadProfile* head) {
  if (head_dim < kMinHeadDim || head_dim > kMaxHeadDim) {
    throw Error(ErrorCode::kUnsupported, fmt::format("head_dim {} is not in {}..{}", head_dim,
                                                     kMinHeadDim, kMaxHeadDim));
  }
  if (spec.side_rank > head_dim) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("side code rank {} is above head_dim {}", spec.side_rank, head_dim));
  }
  if ((spec.bits == 3 ? head_dim / 2 : 0) + spec.wide > head_dim) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' has more wide channels than the {} of head_dim",
                            spec.to_string(), head_dim));
  }
  if (spec.needs_profile() && head == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("codec '{}' needs a profile; make one with headq calibrate",
                            spec.to_string()));
  }
}

std::vector<float> side_basis(const CodecSpec& spec, int d, const HeadProfile* head, int layer,
                              int head_index) {
  const size_t size = static_cast<size_t>(spec.side_rank) * static_cast<size_t>(d);
  if (spec.side_basis == SideBasis::kRandom) {
    const uint64_t stream = static_cast<uint64_t>(layer) * 4096u + static_cast<uint64_t>(head_index);
    return random_basis(d, spec.side_rank, spec.seed * 0x9e3779b97f4a7c15u + stream);
  }
  const std::vector<float>& basis =
      spec.side_basis == SideBasis::kQuery ? head->query_basis : head->key_basis;
  if (basis.size() < size) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("the profile has {} basis vectors, '{}' needs {}",
                            basis.size() / static_cast<size_t>(d), spec.to_string(), spec.side_rank));
  }
  return {basis.begin(), basis.begin() + static_cast<std::ptrdiff_t>(size)};
}

ScalarCodec::Config base_config(const CodecSpec& spec, int head_dim, bool is_value) {
  const bool token = spec.base == BaseKind::kToken;
  ScalarCodec::Config config;
  config.head_dim = head_dim;
  config.token_params = token || is_value;
  config.group_channels = token ? kTokenChannels : kKiviValueChannels;
  config.bits = spec.bits;
  config.hadamard = spec.hadamard;
  return config;
}

}  // namespace

std::unique_ptr<Codec> make_key_codec(const CodecSpec& spec, int head_dim,
                                         const HeadProfile* head, int layer, int head_index) {
  check(spec, head_dim, head);
  if (spec.is_dense()) return nullptr;
  if (spec.is_nib()) {
    return std::make_unique<NibCodec>(head_dim, head->key_nib, spec.wrong_sign);
  }
  ScalarCodec::Config config = base_config(spec, head_dim, false);
  config.wide = spec.wide;
  // The score sees a channel's error times q_c: energy x spread.
  if (spec.bits == 3 || spec.wide != 0) {
    for (int c = 0; c < head_dim; ++c) {
      const size_t i = static_cast<size_t>(c);
      config.energy.push_back(head->query_energy[i] * head->key_variance[i]);
    }
  }
  if (spec.centred) config.mean = head->key_mean;
  if (spec.side_rank > 0) {
    config.side_rank = spec.side_rank;
    config.side_sign = spec.side_sign;
    config.side_basis = side_basis(spec, head_dim, head, layer, head_index);
  }
  return std::make_unique<ScalarCodec>(std::move(config));
}

std::unique_ptr<Codec> make_value_codec(const CodecSpec& spec, int head_dim,
                                             const HeadProfile* head) {
  check(spec, head_dim, head);
  if (spec.is_dense()) return nullptr;
  if (spec.is_nib()) return std::make_unique<NibCodec>(head_dim, head->value_nib, 0);
  if (spec.refined != TokenChoice::kNone) {
    return std::make_unique<A2Codec>(head_dim, spec.refined, spec.seed);
  }
  ScalarCodec::Config config = base_config(spec, head_dim, true);
  if (spec.bits == 3) config.energy = head->value_variance;
  return std::make_unique<ScalarCodec>(std::move(config));
}

}  // namespace headq
