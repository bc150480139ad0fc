#include "supervisor/agent/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <optional>

namespace hvd {

namespace {

// Read, not mapped: a worker that shrinks its page can then do no harm.
std::optional<ProgressPage> read_page(int memory) {
  ProgressPage page;
  const ssize_t n = pread(memory, &page, sizeof page, 0);
  if (n != static_cast<ssize_t>(sizeof page)) return std::nullopt;
  return page;
}

}  // namespace

bool Progress::attach(Fd page) {
  if (!page || fcntl(page.get(), F_GET_SEALS) < 0) return false;
  page_ = std::move(page);
  return true;
}

void Progress::refresh() {
  if (!page_) return;
  const std::optional<ProgressPage> first = read_page(page_.get());
  const std::optional<ProgressPage> second = first ? read_page(page_.get()) : std::nullopt;
  if (!second) return;
  const bool moved = second->step != counted_.step || second->heartbeats != counted_.heartbeats ||
                     second->collectives != counted_.collectives ||
                     second->begun != counted_.begun || second->storage != counted_.storage;
  if (moved) ++signs_;
  // A copy made by the kernel may be torn by a write: only what is read twice is believed.
  const bool new_step = first->step == second->step && second->step != counted_.step;
  if (new_step) step_ = second->step;
  const uint64_t known_step = new_step ? second->step : counted_.step;
  counted_ = *second;
  counted_.step = known_step;
}

}  // namespace hvd
