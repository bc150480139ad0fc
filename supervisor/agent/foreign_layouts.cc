#include "supervisor/agent/foreign_layouts.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

namespace hvd {

namespace {

using Entries = std::vector<FolderEntry>;

const FolderEntry* find(const Entries& entries, std::string_view name) {
  for (const FolderEntry& entry : entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The number that stands at `at`, and `at` behind it.
std::optional<uint64_t> number_at(std::string_view text, size_t& at) {
  uint64_t number = 0;
  const char* begin = text.data() + std::min(at, text.size());
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  if (error != std::errc() || end == begin) return std::nullopt;
  at = static_cast<size_t>(end - text.data());
  return number;
}

// The number behind the last `mark` in a name.
std::optional<uint64_t> number_after(std::string_view name, std::string_view mark) {
  const size_t found = name.rfind(mark);
  if (found == std::string_view::npos) return std::nullopt;
  size_t at = found + mark.size();
  return number_at(name, at);
}

// The number that a name ends with: "step_100", "100".
std::optional<uint64_t> number_at_end(std::string_view name) {
  size_t at = name.size();
  while (at > 0 && is_digit(name[at - 1])) --at;
  return number_at(name, at);
}

// What is wrong with a file that must be there.
std::string lack_of(const Entries& entries, const std::string& name) {
  const FolderEntry* entry = find(entries, name);
  if (entry == nullptr) return name + " is missing";
  if (entry->folder) return name + " is a folder";
  if (entry->size == 0) return name + " is empty";
  return entry->cut_off ? name + " is cut off" : "";
}

// The first lack of any file in a tree.
std::string lack_of_any(const Entries& entries) {
  for (const FolderEntry& entry : entries) {
    std::string lack = entry.folder ? lack_of_any(entry.entries) : "";
    if (!entry.folder && (entry.size == 0 || entry.cut_off)) lack = lack_of(entries, entry.name);
    if (!lack.empty()) return lack;
  }
  return "";
}

// Of the numbers 0..most, one that is not in the set.
std::optional<uint64_t> gap(const std::set<uint64_t>& numbers) {
  uint64_t next = 0;
  for (const uint64_t number : numbers) {
    if (number != next) return next;
    ++next;
  }
  return std::nullopt;
}

// ---- one layout each: nothing if a folder is not of it, else what it lacks ----

using Verdict = std::optional<std::string>;

// The file names in the pickled metadata, which stand there as they are.
std::set<std::string> names_of_shards(std::string_view metadata) {
  constexpr std::string_view kEnd = ".distcp";
  std::set<std::string> names;
  for (size_t end = metadata.find(kEnd); end != std::string_view::npos;
       end = metadata.find(kEnd, end + 1)) {
    size_t begin = end;
    while (begin > 0 && (is_digit(metadata[begin - 1]) || metadata[begin - 1] == '_')) --begin;
    if (begin < end) names.insert(std::string(metadata.substr(begin, end - begin)) + ".distcp");
  }
  return names;
}

Verdict torch_dcp(const FolderEntry& folder) {
  const bool shards = std::any_of(folder.entries.begin(), folder.entries.end(),
                                  [](const auto& e) { return e.name.ends_with(".distcp"); });
  const FolderEntry* metadata = find(folder.entries, ".metadata");
  if (!shards && metadata == nullptr) return std::nullopt;
  std::string lack = lack_of(folder.entries, ".metadata");
  if (!lack.empty()) return lack;
  for (const std::string& name : names_of_shards(metadata->text)) {
    lack = lack_of(folder.entries, name);
    if (!lack.empty()) return lack;
  }
  return lack_of_any(folder.entries);
}

Verdict orbax(const FolderEntry& folder) {
  if (folder.name.find(".orbax-checkpoint-tmp") != std::string::npos) {
    return "it was not renamed to its final name";
  }
  for (const char* mark : {"_CHECKPOINT_METADATA", "commit_success.txt"}) {
    if (find(folder.entries, mark) != nullptr) return lack_of(folder.entries, mark);
  }
  const bool like_it = std::any_of(folder.entries.begin(), folder.entries.end(), [](const auto& e) {
    return find(e.entries, "manifest.ocdbt") != nullptr || find(e.entries, "_METADATA") != nullptr;
  });
  return like_it ? Verdict("_CHECKPOINT_METADATA is missing") : std::nullopt;
}

// The ranks of files "..mp_rank_MM_model_states.pt" and "..pp_rank_D_mp_rank_MM_optim_states.pt".
Verdict deepspeed(const FolderEntry& folder) {
  std::set<uint64_t> models;
  std::map<uint64_t, std::set<uint64_t>> optimizers;  // data-parallel ranks by model-parallel rank
  for (const FolderEntry& file : folder.entries) {
    const auto model = number_after(file.name, "mp_rank_");
    const auto data = number_after(file.name, "pp_rank_");
    if (file.name.ends_with("_model_states.pt") && model) models.insert(*model);
    if (file.name.ends_with("_optim_states.pt") && model && data) optimizers[*model].insert(*data);
  }
  if (models.empty() && optimizers.empty()) return std::nullopt;
  if (models.empty()) return "no file of the model's states is there";
  if (const auto missing = gap(models)) {
    return "the model's states of rank " + std::to_string(*missing) + " are missing";
  }
  size_t most = 0;
  for (const auto& [model, data] : optimizers) most = std::max(most, data.size());
  for (const auto& [model, data] : optimizers) {
    auto missing = gap(data);
    if (!missing && data.size() < most) missing = data.size();
    if (missing)
      return "the optimizer's states of rank " + std::to_string(*missing) + " are missing";
  }
  return lack_of_any(folder.entries);
}

Verdict megatron(const FolderEntry& folder, const Entries& around, uint64_t step) {
  if (!folder.name.starts_with("iter_")) return std::nullopt;
  const std::string tracker = "latest_checkpointed_iteration.txt";
  const FolderEntry* told = find(around, tracker);
  size_t at = 0;
  const auto reached = told == nullptr ? std::nullopt : number_at(told->text, at);
  if (!reached || *reached < step) return tracker + " has not come to it";
  std::set<uint64_t> ranks;
  for (const FolderEntry& entry : folder.entries) {
    const auto rank = number_after(entry.name, "mp_rank_");
    if (entry.folder && rank) {
      ranks.insert(*rank);
      const std::string lack = lack_of(entry.entries, "model_optim_rng.pt");
      if (!lack.empty()) return entry.name + "/" + lack;
    }
  }
  if (const auto missing = gap(ranks)) {
    return "the files of rank " + std::to_string(*missing) + " are missing";
  }
  if (!ranks.empty()) return lack_of_any(folder.entries);
  const Verdict distributed = torch_dcp(folder);
  return distributed ? distributed : Verdict("it holds no files of ranks");
}

// What lacks of "model-00001-of-00003.safetensors" and the like.
std::string lack_of_parts(const Entries& entries) {
  for (const FolderEntry& entry : entries) {
    const auto count = number_after(entry.name, "-of-");
    const size_t dash = entry.name.find("-of-");
    if (!count || entry.folder || dash < 6) continue;
    for (uint64_t part = 1; part <= std::min<uint64_t>(*count, 100'000); ++part) {
      std::string number = std::to_string(part);
      number.insert(0, 5 - std::min<size_t>(5, number.size()), '0');
      const std::string lack =
          lack_of(entries, entry.name.substr(0, dash - 5) + number + entry.name.substr(dash));
      if (!lack.empty()) return lack;
    }
  }
  return "";
}

Verdict hugging_face(const FolderEntry& folder) {
  if (!folder.name.starts_with("checkpoint-")) return std::nullopt;
  const std::string lack = lack_of(folder.entries, "trainer_state.json");
  if (!lack.empty()) return lack;
  const std::string& state = find(folder.entries, "trainer_state.json")->text;
  const size_t end = state.find_last_not_of(" \n\r\t");
  if (end == std::string::npos || state[end] != '}') return "trainer_state.json is cut off";
  const std::string parts = lack_of_parts(folder.entries);
  if (!parts.empty()) return parts;
  const bool model = std::any_of(folder.entries.begin(), folder.entries.end(), [](const auto& e) {
    return e.name.ends_with(".safetensors") || e.name.starts_with("pytorch_model") ||
           e.name.starts_with("global_step");
  });
  return model ? lack_of_any(folder.entries) : "no file of the model is there";
}

// A folder of a step, and what makes it one.
std::optional<ListedForeign> look_at_folder(const FolderEntry& folder, const Entries& around) {
  const auto step = folder.name.find(".orbax-checkpoint-tmp") != std::string::npos
                        ? number_after("/" + folder.name, "/")
                        : number_at_end(folder.name);
  if (!step) return std::nullopt;
  const std::pair<const char*, Verdict> verdicts[] = {
      {"Megatron", megatron(folder, around, *step)},
      {"Hugging Face", hugging_face(folder)},
      {"DeepSpeed", deepspeed(folder)},
      {"Orbax", orbax(folder)},
      {"PyTorch DCP", torch_dcp(folder)},
  };
  for (const auto& [layout, verdict] : verdicts) {
    if (verdict) return ListedForeign{folder.name, layout, *step, *verdict};
  }
  return std::nullopt;
}

// PREFIX.data-00001-of-00002 cut in its parts.
struct DataFile {
  std::string prefix;
  uint64_t part = 0, count = 0;
};

std::optional<DataFile> data_file(const std::string& name) {
  const size_t mark = name.rfind(".data-");
  if (mark == std::string::npos) return std::nullopt;
  size_t at = mark + 6;
  const auto part = number_at(name, at);
  if (!part || name.compare(at, 4, "-of-") != 0) return std::nullopt;
  at += 4;
  const auto count = number_at(name, at);
  if (!count || at != name.size()) return std::nullopt;
  return DataFile{name.substr(0, mark), *part, *count};
}

void find_tensorflow(const Entries& entries, std::vector<ListedForeign>& found) {
  struct Parts {
    uint64_t count = 0;
    std::set<uint64_t> seen;
    std::string lack;
  };
  std::map<std::string, Parts> prefixes;
  for (const FolderEntry& entry : entries) {
    if (entry.folder) continue;
    if (entry.name.ends_with(".index") && entry.name.size() > 6) {
      prefixes[entry.name.substr(0, entry.name.size() - 6)];
    }
    const auto data = data_file(entry.name);
    if (!data) continue;
    Parts& parts = prefixes[data->prefix];
    parts.count = data->count;
    parts.seen.insert(data->part);
    if (parts.lack.empty()) parts.lack = lack_of(entries, entry.name);
  }
  for (auto& [prefix, parts] : prefixes) {
    const auto step = number_at_end(prefix);
    if (!step ||
        (parts.count == 0 && parts.seen.empty() && prefix.find("ckpt") == std::string::npos)) {
      continue;
    }
    std::string lack = lack_of(entries, prefix + ".index");
    if (lack.empty()) lack = parts.lack;
    if (lack.empty() && (parts.count == 0 || parts.seen.size() < parts.count)) {
      lack = "a file " + prefix + ".data-... is missing";
    }
    found.push_back({prefix, "TensorFlow", *step, lack});
  }
}

void find_lightning(const Entries& entries, std::vector<ListedForeign>& found) {
  for (const FolderEntry& entry : entries) {
    const auto step = number_after(entry.name, "step=");
    if (!entry.name.ends_with(".ckpt") || !step) continue;
    found.push_back({entry.name, "Lightning", *step,
                     entry.folder ? lack_of_any(entry.entries) : lack_of(entries, entry.name)});
  }
}

}  // namespace

bool is_read(const std::string& name) {
  return name == ".metadata" || name == "trainer_state.json" ||
         name == "latest_checkpointed_iteration.txt";
}

std::vector<ListedForeign> find_foreign(const std::vector<FolderEntry>& listing) {
  std::vector<ListedForeign> found;
  find_tensorflow(listing, found);
  find_lightning(listing, found);
  for (const FolderEntry& entry : listing) {
    if (!entry.folder || entry.name.ends_with(".ckpt")) continue;
    if (auto one = look_at_folder(entry, listing)) found.push_back(std::move(*one));
  }
  // A folder between, as Lightning and the Trainer's runs have it:
  // "checkpoints/epoch=1-step=5.ckpt".
  for (const FolderEntry& entry : listing) {
    if (!entry.folder || entry.entries.empty()) continue;
    std::vector<ListedForeign> below;
    find_lightning(entry.entries, below);
    for (ListedForeign& one : below) one.path = entry.name + "/" + one.path;
    found.insert(found.end(), below.begin(), below.end());
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

}  // namespace hvd
