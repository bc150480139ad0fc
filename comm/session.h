// One process's membership in its job: the wire to its agent, the links to the other ranks, what it
// counts for its agent. Made by hvd_init.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/checkpoint_format.h"
#include "base/message.h"
#include "comm/agent_wire.h"
#include "comm/async_save.h"
#include "comm/backend.h"
#include "comm/checkpoint.h"
#include "comm/collectives.h"
#include "comm/kept_state.h"
#include "comm/links.h"
#include "comm/settings.h"

namespace hvd {

class Session {
 public:
  // Joins the job, or stands alone as rank 0 of 1.
  static Outcome open(const Settings& settings, std::unique_ptr<Session>& session);

  uint32_t rank() const { return welcome_.rank; }
  uint32_t size() const { return welcome_.size; }
  uint32_t local_rank() const { return welcome_.local_rank; }
  uint32_t local_size() const { return welcome_.local_size; }
  const Settings& settings() const { return settings_; }

  // Where heartbeats are counted; stays mapped when the session is gone.
  ProgressPage* page() const { return page_; }

  // After a failure that is not only of the call's arguments or files, all others fail the same
  // way.
  Outcome allreduce(const void* in, void* out, uint64_t count, hvd_dtype dtype);
  Outcome allreduce_shards(const void* shards, uint32_t total, void* out, uint64_t count,
                           hvd_dtype dtype);
  Outcome broadcast(void* buffer, uint64_t count, hvd_dtype dtype, uint32_t root);
  Outcome barrier();
  Outcome save(uint64_t step, const std::string& note, const std::vector<NamedArray>& arrays);
  Outcome save_async(uint64_t step, const std::string& note, const std::vector<NamedArray>& arrays);
  Outcome wait_for_save();
  Outcome keep(uint64_t step, const std::string& note, const std::vector<NamedArray>& arrays);
  Outcome load(const std::vector<ArrayTarget>& targets, size_t note_limit,
               LoadedCheckpoint& loaded);
  Outcome abort(int code, const std::string& reason);
  Outcome finalize();

  // Makes a failure that the communicator did not see itself, such as no memory, end it.
  Outcome fail(const Outcome& failure) { return communicator_->fail(failure); }

 private:
  explicit Session(const Settings& settings) : settings_(settings) {}
  Outcome make_page(Fd& memory);
  Outcome join();
  void take_kept();
  Outcome build_links();
  Outcome open_backend();
  template <class Call>
  Outcome timed(Call call);
  template <class Call>
  Outcome counted(Call call);
  template <class Call>
  Outcome on_storage(Call call);
  Outcome ends_if_lost(const Outcome& outcome);
  CheckpointPlace checkpoint_place() const;
  Outcome rescue(uint64_t step, const std::string& note, const std::vector<NamedArray>& arrays);

  Settings settings_;
  WaitLimits limits_;
  Welcome welcome_;
  ProgressPage* page_ = nullptr;
  std::unique_ptr<AgentWire> agent_;  // none: alone
  AsyncSave async_save_;
  KeptStates kept_states_;
  Fd kept_memory_;  // of welcome_.kept
  std::unique_ptr<Links> links_;
  std::unique_ptr<Communicator> communicator_;
  std::vector<std::unique_ptr<Backend>> backends_;  // the first that takes a buffer serves it
};

}  // namespace hvd
