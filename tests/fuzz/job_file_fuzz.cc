// CKPT_DIR/job.toml: what is read, written and read again is the same.
#include "launcher/job_file.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto job = parse_job_file(text_of(data, size), "f");
  if (!job) {
    check_sentence(job.error().text, "f:");
    return 0;
  }
  HVD_CHECK(!job->argv.empty() && !job->hosts.empty() && job->size > 0);
  HVD_CHECK(job->secret.empty() && job->id.empty());
  const std::string text = job_file_text(*job, "1");
  const auto again = parse_job_file(text, "f");
  HVD_CHECK(again.ok());
  HVD_CHECK(job_file_text(*again, "1") == text);
  return 0;
}
