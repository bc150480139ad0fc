#include "launcher/bootstrap.h"

#include <sys/utsname.h>

#include <charconv>
#include <utility>

#include "base/message.h"
#include "base/template.h"

namespace hvd {

namespace {

constexpr std::string_view kNeed = "hvdlaunch-agent-need ";
constexpr std::string_view kError = "hvdlaunch-agent-error ";

// Most bytes of a login's own text that are skipped.
constexpr size_t kMostNoise = 64u << 10;

// What runs on the far side, by sh. Between single quotes for any login shell, so it has no single
// quote, backslash, exclamation mark or newline.
//
// f finds the folders that may hold the cache, in order. A cached binary runs if folder and file
// are ours alone and it is the very file that was verified, which v tells without starting a
// program: `same` is a second name of that file, and `ok` is as old as its verification. It is
// looked at and run through one descriptor, so that another file put in its place meanwhile is not
// what runs.
//
// p says why a folder is no good (nothing if it is): not ours, not writable, full, or on a file
// system without execution, which an empty program tells. What a command says counts only when it
// fails (q): where LD_PRELOAD or a locale is not to be had, all of them complain.
constexpr std::string_view kScript =
    "umask 077; set -f; B=@BUILD@; "
    "f() { case $1 in "
    "1) d=${XDG_CACHE_HOME:-$HOME/.cache}/hvdlaunch;; "
    "2) d=${TMPDIR:-/var/tmp}/hvdlaunch-$(id -u);; "
    "*) d=${XDG_RUNTIME_DIR:-/tmp}/hvdlaunch-$(id -u);; esac; D=$d/$B; b=$D/hvdlaunch; }; "
    "o() { test -O \"$1\" && if test -h \"$1\"; then false; fi; }; "
    "v() { test /proc/self/fd/9 -ef \"$D/same\" && test -f \"$D/ok\" && "
    "if test \"$b\" -nt \"$D/ok\"; then false; fi; }; "
    "for i in 1 2 3; do f $i; if o \"$d\" && o \"$D\" && o \"$b\" && test -x \"$b\"; then "
    "exec 9<\"$b\"; v && exec /proc/self/fd/9 agent @ARGS@; fi; done; "
    "e() { echo; echo hvdlaunch-agent-error $*; exit 1; }; "
    "x=$(getconf GNU_LIBC_VERSION 2>/dev/null) || x=$(ldd --version 2>&1 | head -n 1); "
    "echo; echo hvdlaunch-agent-need $(uname -m) ${x:-unknown}; "
    "read -r n h || exit 1; "
    "q() { m=$(\"$@\" 2>&1) || { echo $m; false; }; }; "
    "p() { q mkdir -p \"$D\" || return; "
    "o \"$d\" && o \"$D\" || { echo $D is not ours; return; }; "
    "q chmod 700 \"$d\" \"$D\" || return; "
    "p=$(mktemp \"$D/try.XXXXXX\" 2>/dev/null) || { mktemp \"$D/try.XXXXXX\" 2>&1; return; }; "
    "z() { chmod 700 \"$p\" && \"$p\" && head -c $n /dev/zero >\"$p\"; }; "
    "q z; rm -f \"$p\"; }; "
    "w=; for i in 1 2 3 4; do test $i = 4 && e $w; f $i; m=$(p); test -z \"$m\" && break; "
    "w=\"$w${w:+; }$m\"; done; "
    "t=$(mktemp \"$D/new.XXXXXX\" 2>/dev/null) || e $(mktemp \"$D/new.XXXXXX\" 2>&1); "
    "c() { rm -f \"$t\"; }; trap c 0; trap \"exit 1\" 1 2 13 15; "
    "m=$( { head -c $n >\"$t\"; } 2>&1) || e $t: $m; "
    "exec 9<\"$t\"; s=$(sha256sum <&9 2>/dev/null) || e sha256sum: $(sha256sum <&9 2>&1); "
    "test \"${s%% *}\" = \"$h\" || e $t arrived damaged; "
    "m=$(chmod 700 \"$t\" 2>&1) || e $m; "
    "m=$(/proc/self/fd/9 --version 2>&1 </dev/null) || e it cannot be run there: $m; "
    "ln -f \"$t\" \"$D/same\" 2>/dev/null; m=$(mv -f \"$t\" \"$b\" 2>&1) || e $m; : >\"$D/ok\"; "
    "i=0; for f in $(ls -t \"$d\"); do i=$((i+1)); "
    "if test $i -gt 3 && test -f \"$d/$f/hvdlaunch\"; then rm -rf \"$d/$f\"; fi; done; "
    "exec /proc/self/fd/9 agent @ARGS@";

bool is_plain(const std::string& text) {
  return text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
             "0123456789-_.=: ") == text.npos;
}

struct Version {
  int major = 0, minor = 0;
  friend auto operator<=>(const Version&, const Version&) = default;
};

// The version at the end of "glibc 2.36" and of "ldd (Debian GLIBC 2.36-9) 2.36".
Version last_version(std::string_view text) {
  const size_t start = text.find_last_of(' ');
  const std::string_view word = start == text.npos ? text : text.substr(start + 1);
  Version version;
  const char* end = word.data() + word.size();
  const auto [point, error] = std::from_chars(word.data(), end, version.major);
  if (error != std::errc() || point == end || *point != '.') return {};
  std::from_chars(point + 1, end, version.minor);
  return version;
}

// Remote text on our terminal: without control characters.
std::string cleaned(std::string_view text) {
  std::string line;
  for (const char c : text.substr(0, 500)) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  return line;
}

}  // namespace

std::string bootstrap_command(const std::string& build, const std::string& arguments) {
  HVD_CHECK(!build.empty() && is_plain(build) && is_plain(arguments));
  std::string script(kScript);
  replace_all(script, "@BUILD@", build);
  replace_all(script, "@ARGS@", arguments);
  return "exec sh -c '" + script + "'";
}

// As words, sh runs `:` and then the command. Joined, the login shell runs `sh -c :` and then the
// command.
std::vector<std::string> remote_words(const std::string& bootstrap_command) {
  return {"sh", "-c", ":;" + bootstrap_command};
}

Bootstrap::Bootstrap(std::string host, std::string build)
    : host_(std::move(host)), build_(std::move(build)) {}

void Bootstrap::fail(const std::string& why) {
  error_ = why;
  state_ = State::failed;
}

void Bootstrap::feed(std::string_view bytes) {
  if (state_ == State::failed) return;
  buffer_ += bytes;
  while (state_ == State::waiting) {
    const size_t end = buffer_.find('\n');
    if (end == buffer_.npos) {
      if (skipped_ + buffer_.size() > kMostNoise) {
        fail(host_ + " prints too much at login: more than " + std::to_string(kMostNoise) +
             " bytes before the agent started");
      }
      return;
    }
    const std::string line = buffer_.substr(0, end);
    buffer_.erase(0, end + 1);
    take_line(line);
  }
}

// The marks are looked for anywhere in the line: what a login printed may lack its newline.
void Bootstrap::take_line(const std::string& line) {
  if (const size_t at = line.find(kAgentGreeting); at != line.npos) {
    const std::string build = line.substr(at + kAgentGreeting.size());
    if (build != build_) {
      return fail(host_ + " started an agent of another build (" + cleaned(build) +
                  ") than this one (" + build_ + ")");
    }
    state_ = State::ready;
  } else if (const size_t need = line.find(kNeed); need != line.npos) {
    judge_need(std::string_view(line).substr(need + kNeed.size()));
  } else if (const size_t error = line.find(kError); error != line.npos) {
    fail("the agent cannot be set up on " + host_ + ": " +
         cleaned(std::string_view(line).substr(error + kError.size())));
  } else {
    skipped_ += line.size() + 1;
    if (!line.empty()) last_skipped_ = cleaned(line);
    if (skipped_ > kMostNoise) {
      fail(host_ + " prints too much at login: more than " + std::to_string(kMostNoise) +
           " bytes before the agent started");
    }
  }
}

void Bootstrap::judge_need(std::string_view platform) {
  if (pushed_) return fail(host_ + " asked for the agent's binary a second time");
  const size_t space = platform.find(' ');
  const std::string_view architecture = platform.substr(0, space);
  const std::string_view libc =
      space == platform.npos ? std::string_view("unknown") : platform.substr(space + 1);
  utsname own;
  uname(&own);
  if (architecture != own.machine) {
    return fail("this hvdlaunch is built for " + std::string(own.machine) + " and cannot run on " +
                host_ + ", which is " + cleaned(architecture));
  }
  const std::string needed = needed_glibc();
  const bool musl = libc.find("musl") != libc.npos;
  const Version there = last_version(libc);
  // A library that cannot name itself is tried: the binary is run once before it is used.
  if (musl || (there != Version{} && there < last_version(needed))) {
    return fail("this hvdlaunch needs the C library glibc " + needed + " or newer, and " + host_ +
                " has " + cleaned(libc));
  }
  state_ = State::need_binary;
}

std::string Bootstrap::push(const AgentBinary& binary) {
  HVD_CHECK(state_ == State::need_binary);
  pushed_ = true;
  state_ = State::waiting;
  return std::to_string(binary.content.size()) + " " + binary.sha256 + "\n" + binary.content;
}

std::string Bootstrap::take_rest() {
  return std::exchange(buffer_, {});
}

}  // namespace hvd
