// Runs a fuzz target on files: those of the folders and those named on the command line.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/fd.h"
#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      paths.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(argv[i])) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    const auto content = hvd::read_file(path, 64u << 20);
    if (!content) {
      std::fprintf(stderr, "%s\n", content.error().text.c_str());
      return 1;
    }
    // Whoever aborts says on which file.
    std::fprintf(stderr, "%s\n", path.c_str());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(content->data()), content->size());
  }
  std::printf("%zu files\n", paths.size());
  return paths.empty() ? 1 : 0;
}
