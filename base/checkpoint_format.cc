#include "base/checkpoint_format.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>

#include "base/checkpoint_format_parts.h"

namespace hvd {

using namespace checkpoint;

namespace {

constexpr std::string_view kFormat = "hvdlaunch-checkpoint-2";
constexpr std::string_view kDigestMember = ",\n  \"digest\": \"";
constexpr std::string_view kManifestEnd = "\"\n}\n";

std::string padded(const char* prefix, int width, uint64_t number) {
  char text[64];
  std::snprintf(text, sizeof text, "%s%0*llu", prefix, width,
                static_cast<unsigned long long>(number));
  return text;
}

// The number that `text` is, in decimal digits only.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

// The number between `prefix` and `suffix`, if both are there.
template <class T>
std::optional<T> number_within(std::string_view text, std::string_view prefix,
                               std::string_view suffix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  if (!text.ends_with(suffix)) return std::nullopt;
  text.remove_suffix(suffix.size());
  return parse_number<T>(text);
}

}  // namespace

std::string step_folder(uint64_t step) {
  return padded("step-", 9, step);
}

std::string draft_folder(uint64_t step, uint32_t attempt) {
  return step_folder(step) + ".tmp-" + std::to_string(attempt);
}

std::string shard_file(uint32_t rank) {
  return padded("rank-", 4, rank) + ".safetensors";
}

std::optional<uint64_t> parse_step_folder(std::string_view name) {
  const auto step = number_within<uint64_t>(name, "step-", "");
  if (!step || step_folder(*step) != name) return std::nullopt;
  return step;
}

std::optional<Draft> parse_draft_folder(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto step = parse_step_folder(name.substr(0, dot));
  const auto attempt = number_within<uint32_t>(name.substr(dot), ".tmp-", "");
  if (!step || !attempt || draft_folder(*step, *attempt) != name) return std::nullopt;
  return Draft{*step, *attempt};
}

std::optional<uint32_t> parse_shard_file(std::string_view name) {
  const auto rank = number_within<uint32_t>(name, "rank-", ".safetensors");
  if (!rank || shard_file(*rank) != name) return std::nullopt;
  return rank;
}

const Shard* shard_of(const Manifest& manifest, uint32_t rank) {
  const auto found = std::find_if(manifest.shards.begin(), manifest.shards.end(),
                                  [&](const Shard& shard) { return shard.rank == rank; });
  return found == manifest.shards.end() ? nullptr : &*found;
}

ExpectedShard expected_shard(const Manifest& manifest, const Shard& shard) {
  return {shard, {manifest.job, manifest.attempt, manifest.step, shard.rank, manifest.size}};
}

bool serves_any_rank(const std::vector<Shard>& shards) {
  return !shards.empty() && std::all_of(shards.begin(), shards.end(), [&](const Shard& shard) {
    return !shard.own_arrays && !shard.state_digest.empty() &&
           shard.state_digest == shards.front().state_digest;
  });
}

std::string manifest_text(const Manifest& manifest) {
  Json shards = Json::array();
  for (const Shard& shard : manifest.shards) {
    shards.push_back({{"rank", shard.rank},
                      {"file", shard_file(shard.rank)},
                      {"length", shard.length},
                      {"digest", shard.digest},
                      {"state_digest", shard.state_digest},
                      {"own_arrays", shard.own_arrays}});
  }
  const Json json = {
      {"format", kFormat},           {"job", manifest.job},   {"attempt", manifest.attempt},
      {"step", manifest.step},       {"size", manifest.size}, {"replicated", manifest.replicated},
      {"rescued", manifest.rescued}, {"note", manifest.note}, {"shards", std::move(shards)}};
  // Words from elsewhere must not stop a commit: what is not UTF-8 is replaced.
  std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace);
  text.resize(text.size() - 2);  // the closing "\n}"
  const std::string digest = digest_of(text);
  return text.append(kDigestMember).append(digest).append(kManifestEnd);
}

namespace {

bool is_digest(std::string_view text) {
  return text.size() == kDigestDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

template <class T>
bool read_member(const Json& object, std::string_view name, T& value) {
  const Json* json = member(object, name);
  uint64_t number = 0;
  if (json == nullptr || !read_unsigned(*json, number) || number > std::numeric_limits<T>::max()) {
    return false;
  }
  value = static_cast<T>(number);
  return true;
}

bool read_flag(const Json& object, std::string_view name, bool& value) {
  const Json* json = member(object, name);
  if (json == nullptr || !json->is_boolean()) return false;
  value = json->get<bool>();
  return true;
}

bool read_shard_entry(const Json& json, Shard& shard) {
  return read_member(json, "rank", shard.rank) && read_member(json, "length", shard.length) &&
         read_text(json, "digest", shard.digest) && is_digest(shard.digest) &&
         read_text(json, "state_digest", shard.state_digest) &&
         (shard.state_digest.empty() || is_digest(shard.state_digest)) &&
         read_flag(json, "own_arrays", shard.own_arrays);
}

// Empty, or what is wrong.
std::string fill_manifest(const Json& json, Manifest& manifest) {
  std::string format;
  if (!read_text(json, "format", format)) return "it names no format";
  if (format != kFormat)
    return "its format is '" + format + "', not '" + std::string(kFormat) + "'";
  if (!read_text(json, "job", manifest.job) || !read_member(json, "attempt", manifest.attempt) ||
      !read_member(json, "step", manifest.step) || !read_member(json, "size", manifest.size) ||
      !read_flag(json, "replicated", manifest.replicated) ||
      !read_flag(json, "rescued", manifest.rescued) || !read_text(json, "note", manifest.note)) {
    return "job, attempt, step, size, replicated, rescued or note is missing or of the wrong type";
  }
  const Json* shards = member(json, "shards");
  const std::string kNotEach = "it does not list one shard for each rank";
  if (shards == nullptr || !shards->is_array() || shards->size() > manifest.size) return kNotEach;
  for (const Json& item : *shards) {
    Shard shard;
    if (!read_shard_entry(item, shard)) return "a shard's entry is malformed";
    const bool ascends = manifest.shards.empty() || shard.rank > manifest.shards.back().rank;
    if (!ascends || shard.rank >= manifest.size) return kNotEach;
    manifest.shards.push_back(std::move(shard));
  }
  const bool some = manifest.rescued && manifest.replicated && !manifest.shards.empty();
  if (!some && manifest.shards.size() != manifest.size) return kNotEach;
  return "";
}

}  // namespace

Result<Manifest> parse_manifest(std::string_view text) {
  const size_t tail = kDigestMember.size() + kDigestDigits + kManifestEnd.size();
  if (text.size() > kMaxManifest) return Error{"the manifest is too long"};
  if (text.size() < tail || !text.ends_with(kManifestEnd)) {
    return Error{"the manifest is damaged: its end is missing"};
  }
  const std::string_view body = text.substr(0, text.size() - tail);
  const std::string_view end = text.substr(body.size());
  const std::string_view digest = end.substr(kDigestMember.size(), kDigestDigits);
  if (!end.starts_with(kDigestMember) || digest != digest_of(body)) {
    return Error{"the manifest is damaged: it does not match its own digest"};
  }
  try {
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) return Error{"the manifest is not a JSON object"};
    Manifest manifest;
    const std::string wrong = fill_manifest(json, manifest);
    if (!wrong.empty()) return Error{"the manifest cannot be used: " + wrong};
    return manifest;
  } catch (const nlohmann::json::exception& e) {
    return Error{std::string("the manifest cannot be used: ") + e.what()};
  }
}

std::string digest_of(std::string_view bytes) {
  Digest digest;
  digest.add(bytes);
  return digest.hex();
}

}  // namespace hvd
