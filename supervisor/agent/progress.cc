#include "supervisor/agent/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <optional>

#include "base/message.h"

namespace hvd {

namespace {

// Read, not mapped: a worker that shrinks its page can then do no harm.
std::optional<uint64_t> read_step(int page) {
  uint64_t step = 0;
  const ssize_t n = pread(page, &step, sizeof step, offsetof(ProgressPage, step));
  if (n != static_cast<ssize_t>(sizeof step)) return std::nullopt;
  return step;
}

}  // namespace

bool Progress::attach(Fd page) {
  if (!page || fcntl(page.get(), F_GET_SEALS) < 0) return false;
  page_ = std::move(page);
  return true;
}

void Progress::refresh() {
  if (!page_) return;
  const std::optional<uint64_t> first = read_step(page_.get());
  // A copy made by the kernel may be torn by a write: only what is read twice is believed.
  if (!first || first != read_step(page_.get()) || *first == page_step_) return;
  page_step_ = *first;
  step_ = *first;
}

}  // namespace hvd
