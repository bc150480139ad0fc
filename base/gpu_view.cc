#include "base/gpu_view.h"

#include <cstdlib>

namespace hvd {

namespace {

bool is_device(std::string_view entry) {
  return !entry.empty() && entry[0] != '-' && entry != "NoDevFiles" && entry != "none" &&
         entry != "void";
}

std::string_view trimmed_entry(std::string_view entry) {
  const size_t first = entry.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return entry.substr(first, entry.find_last_not_of(' ') + 1 - first);
}

}  // namespace

std::vector<std::string> gpu_view(const std::optional<std::string>& visible, uint32_t devices) {
  std::vector<std::string> view;
  if (!visible) {
    for (uint32_t index = 0; index < devices; ++index) view.push_back(std::to_string(index));
    return view;
  }
  std::string_view rest = *visible;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view entry = trimmed_entry(rest.substr(0, comma));
    if (!is_device(entry)) return view;
    view.emplace_back(entry);
    if (comma == std::string_view::npos) return view;
    rest.remove_prefix(comma + 1);
  }
}

uint32_t visible_gpus(uint32_t devices) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return static_cast<uint32_t>(
      gpu_view(visible == nullptr ? std::nullopt : std::optional<std::string>(visible), devices)
          .size());
}

std::string joined_gpus(const std::vector<std::string>& view) {
  std::string all;
  for (const std::string& entry : view) all += (all.empty() ? "" : ",") + entry;
  return all;
}

}  // namespace hvd
