// Where --log-dir puts things:
//
//   DIR/attempt-N/rank-R@HOST.out, .err    what the rank wrote, byte for byte
//   DIR/latest                             a link to the newest attempt-N
//
// Nothing is ever overwritten: a run that finds folders of earlier ones goes on counting behind
// them.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/message.h"

namespace hvd {

// Makes the folder, and in it that of the job's first attempt: the first number behind all that are
// there. Returns how many numbers were taken before. The error names the folder.
Result<uint32_t> claim_log_folder(const std::string& dir);
// Makes the folder of a later attempt: the first number from this on that nobody has, which is
// returned.
Result<uint32_t> claim_log_number(const std::string& dir, uint32_t number);

// "attempt-3"
std::string log_folder_name(uint32_t number);
std::string log_file(const std::string& dir, uint32_t number, uint32_t rank,
                     const std::string& host, Stream stream);

}  // namespace hvd
