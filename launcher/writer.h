// A writer thread. Such threads are the only ones that touch terminals, pipes of our readers, and
// files while a job runs. A reader under Ctrl-S or a hung log disk stops its thread and nothing
// else; what waits in the queue is bounded by the credit that the ranks were granted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/message.h"
#include "base/time.h"

namespace hvd {

// Output of one stream of a rank that has been written: credit to give back.
struct Written {
  uint32_t attempt = 0, rank = 0;
  Stream stream = Stream::out;
  uint64_t bytes = 0;
  uint64_t* mark = nullptr;  // takes `shown` once the text is written; see ShownTable
  uint64_t shown = 0;
};

class Writer {
 public:
  Writer();
  // Waits for the queue to be written.
  ~Writer();

  // Queues text for stdout or stderr; `credit` comes back in take_written().
  void print(Stream stream, std::string text, Written credit = {});
  // Queues bytes for the end of a file, which is made with its folders on first need.
  void append(const std::string& path, std::string bytes, Written credit = {});
  // Queues the making of the log folder of this number in `dir`, or of the next that no other run
  // has. What is queued for it afterwards, under this number, goes where it was made.
  void claim(const std::string& dir, uint32_t number);
  // Queues the making of a symbolic link, or its change to another target. What stands there and is
  // no link stays.
  void link(const std::string& path, const std::string& target);
  // Queues the replacement of a small file. Not synced: for hints that may be lost.
  void replace(const std::string& path, std::string bytes);
  // Queues work on `path` that can take its time, or for ever; its error is a whole sentence.
  void perform(const std::string& path, std::function<Status()> task);

  // Readable when take_written() has news or something could not be written.
  int fd() const { return event_.get(); }
  std::vector<Written> take_written();
  // The errno with which stdout or stderr could not be written, EPIPE if its reader is gone; 0: all
  // that was to be written is.
  int broken(Stream stream) const;
  // Everything queued so far is written.
  bool idle() const;
  // The first file that could not be written, and the first link that could not be made; each once.
  std::string take_error();
  // A file lacks bytes that were to be appended.
  bool incomplete() const;
  // The file that nothing could be written to for so long, once; and when that will be.
  std::string take_stuck(Time now, Duration limit);
  std::optional<Time> stuck_at(Duration limit) const;

 private:
  struct Item {
    enum class Kind { print, append, replace, link, claim, perform } kind;
    Stream stream;
    std::string path, bytes;
    Written credit;
    uint32_t number = 0;                // of the log folder to claim
    std::function<Status()> task = {};  // to perform
  };

  void start_thread();
  void push(Item item);
  void run();
  void write(Item& item);
  Status write_file(const Item& item);
  Status append_file(const Item& item);
  Status link_file(const Item& item);
  Status claim_folder(const Item& item);
  std::string claimed(const std::string& folder) const;
  std::string place_of(const std::string& path) const;
  void widen_stdout();

  Fd event_;
  mutable std::mutex mutex_;
  std::condition_variable more_;
  std::deque<Item> queue_;  // under mutex_, as all below to files_
  std::vector<Written> written_;
  bool busy_ = false, closing_ = false;
  int broken_[2] = {0, 0};  // by stream
  bool incomplete_ = false, link_failed_ = false, stuck_told_ = false;
  std::string error_, path_;         // path_: of the file that is being written
  Time since_{};                     // when that began
  std::map<std::string, Fd> files_;  // of the thread, as wide_
  // Log folders by the name that they were claimed under; empty: there is none.
  std::map<std::string, std::string> folders_;  // of the thread
  bool wide_ = false;                           // stdout's pipe is as wide as it gets
  std::thread thread_;
};

}  // namespace hvd
