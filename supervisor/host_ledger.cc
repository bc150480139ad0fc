#include "supervisor/host_ledger.h"

#include <algorithm>

namespace hvd {

using namespace std::chrono_literals;

namespace {
constexpr Duration kFirstCooling = 10s;
constexpr Duration kLongestCooling = 5min;
constexpr Duration kForgotten = 10min;
constexpr uint32_t kDoublings = 5;  // beyond them it is the longest
}  // namespace

void HostLedger::failed(uint32_t host, Time now) {
  Record& record = records_[host];
  if (record.failures > 0 && now - record.last > kForgotten) record.failures = 0;
  ++record.failures;
  record.last = now;
  if (limit_ == 0 || record.failures < 2) return;
  const Duration cooling = kFirstCooling * (1 << std::min(record.failures - 2, kDoublings));
  record.cools_until = now + std::min(cooling, kLongestCooling);
  if (record.failures >= limit_) exclude(host, now);
}

void HostLedger::exclude(uint32_t host, Time now) {
  records_[host].excluded = true;
  records_[host].cools_until = now + kLongestCooling;
}

void HostLedger::restore(uint32_t host, uint32_t failures, bool excluded, Time now) {
  records_[host].failures = failures;
  records_[host].last = now;
  if (excluded) exclude(host, now);
}

uint32_t HostLedger::rank_failed(uint32_t host) {
  in_a_row_ = rank_host_ == host ? in_a_row_ + 1 : 1;
  rank_host_ = host;
  return in_a_row_;
}

}  // namespace hvd
