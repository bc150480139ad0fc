// How an operation of libhvdcomm ended: success, or a result code with its sentence.
#pragma once

#include <string>
#include <utility>

#include "comm/include/hvd/comm.h"

namespace hvd {

class [[nodiscard]] Outcome {
 public:
  Outcome() = default;
  Outcome(hvd_result code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const { return code_ == HVD_OK; }
  explicit operator bool() const { return ok(); }
  hvd_result code() const { return code_; }
  const std::string& text() const { return text_; }

 private:
  hvd_result code_ = HVD_OK;
  std::string text_;
};

}  // namespace hvd
