// Where the sanitizers put what they find. In every program of a build with them, for most are
// children with an environment of their own.
#include <dlfcn.h>
#include <sanitizer/lsan_interface.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/exit_codes.h"

#define HVD_REPORT HVD_REPORTS "/report"

extern "C" const char* __asan_default_options() {
  return "log_path=" HVD_REPORT ":log_exe_name=1";
}

extern "C" const char* __ubsan_default_options() {
  return "log_exe_name=1:print_stacktrace=1";
}

// What UBSan's library does with a log_path is hidden by a function of the same name in ASan's.
__attribute__((constructor)) static void tell_ubsan() {
  void* library = dlopen("libubsan.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  using SetPath = void (*)(const char*);
  const auto set_path = reinterpret_cast<SetPath>(dlsym(library, "__sanitizer_set_report_path"));
  if (set_path != nullptr) set_path(HVD_REPORT);
}

// Agents, which are forked, end without what a program does at its exit, where leaks are looked
// for. A child on its parent's memory, whose program could not be run, has none of its own.
extern "C" void _exit(int code) {
  if (code != hvd::kExitNotFound) __lsan_do_leak_check();
  while (true) syscall(SYS_exit_group, code);
}
