// The running program as a file for other hosts, and what it needs there.
#include <elf.h>
#include <link.h>
#include <openssl/evp.h>

#include <cstdio>
#include <utility>

#include "base/build_id.h"
#include "base/fd.h"
#include "launcher/bootstrap.h"

namespace hvd {

namespace {

constexpr size_t kLargestBinary = 512u << 20;

std::string hex(const unsigned char* bytes, size_t size) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

// The version table of the running program: which symbol versions it needs of which library.
struct Needs {
  const char* strings = nullptr;
  const ElfW(Verneed) * first = nullptr;
  size_t count = 0;
};

// Where a dynamic entry points: some C libraries have added the load address, some have not.
template <class T>
const T* at(const dl_phdr_info& info, ElfW(Addr) value) {
  return reinterpret_cast<const T*>(value < info.dlpi_addr ? info.dlpi_addr + value : value);
}

int read_needs(dl_phdr_info* info, size_t, void* out) {
  auto& needs = *static_cast<Needs*>(out);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* entry =
        reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_STRTAB) needs.strings = at<char>(*info, entry->d_un.d_ptr);
      if (entry->d_tag == DT_VERNEED) needs.first = at<ElfW(Verneed)>(*info, entry->d_un.d_ptr);
      if (entry->d_tag == DT_VERNEEDNUM) needs.count = entry->d_un.d_val;
    }
  }
  return 1;  // the first object is the program itself
}

template <class T>
const T* step(const void* from, size_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(from) + offset);
}

}  // namespace

std::string needed_glibc() {
  Needs needs;
  dl_iterate_phdr(read_needs, &needs);
  int newest_major = 0;
  int newest_minor = 0;
  const auto* library = needs.first;
  for (size_t i = 0; i < needs.count; ++i) {
    const auto* version = step<ElfW(Vernaux)>(library, library->vn_aux);
    for (int k = 0; k < library->vn_cnt; ++k) {
      int major = 0;
      int minor = 0;
      std::sscanf(needs.strings + version->vna_name, "GLIBC_%d.%d", &major, &minor);
      if (std::pair(major, minor) > std::pair(newest_major, newest_minor)) {
        newest_major = major;
        newest_minor = minor;
      }
      version = step<ElfW(Vernaux)>(version, version->vna_next);
    }
    library = step<ElfW(Verneed)>(library, library->vn_next);
  }
  return std::to_string(newest_major) + "." + std::to_string(newest_minor);
}

Result<AgentBinary> read_own_binary() {
  Result<std::string> content = read_file("/proc/self/exe", kLargestBinary);
  if (!content) return content.error();
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  HVD_CHECK(EVP_Digest(content->data(), content->size(), digest, &size, EVP_sha256(), nullptr) ==
            1);
  return AgentBinary{own_build_id(), std::move(*content), hex(digest, size)};
}

}  // namespace hvd
