#include "base/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstring>
#include <string_view>

namespace hvd {

namespace {

size_t padded(size_t bytes) {
  return (bytes + 3) & ~size_t{3};
}

std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// The GNU build id among the notes of one segment, or empty.
std::string_view find_build_id(std::string_view notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes.data(), sizeof header);
    notes.remove_prefix(sizeof header);
    const size_t whole = padded(header.n_namesz) + padded(header.n_descsz);
    if (whole > notes.size()) return {};
    const std::string_view name = notes.substr(0, header.n_namesz);
    if (header.n_type == NT_GNU_BUILD_ID && name == std::string_view("GNU", 4)) {
      return notes.substr(padded(header.n_namesz), header.n_descsz);
    }
    notes.remove_prefix(whole);
  }
  return {};
}

// Called for the program itself first, and returns 1 so that no library is looked at.
int visit_program(dl_phdr_info* info, size_t, void* out) {
  for (size_t i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* start = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    const std::string_view id = find_build_id({start, segment.p_memsz});
    if (!id.empty()) {
      *static_cast<std::string*>(out) = hex(id);
      break;
    }
  }
  return 1;
}

}  // namespace

std::string own_build_id() {
  std::string id;
  dl_iterate_phdr(visit_program, &id);
  return id;
}

}  // namespace hvd
