#include "launcher/hosts.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/fd.h"
#include "launcher/host_choice.h"
#include "launcher/host_spec.h"
#include "launcher/suggest.h"

using namespace hvd;

namespace {

// "user@name(address):slots*" with what else is set; '*' marks a spare.
std::string text(const Host& host) {
  std::string out = (host.user.empty() ? "" : host.user + "@") + host.name;
  if (host.address != host.name) out += "(" + host.address + ")";
  if (host.port != 0) out += "#" + std::to_string(host.port);
  out += ":" + (host.slots_auto ? std::string("auto") : std::to_string(host.slots));
  return out + (host.spare ? "*" : "");
}

std::string text(const std::vector<Host>& hosts) {
  std::string out;
  for (const Host& host : hosts) out += (out.empty() ? "" : " ") + text(host);
  return out;
}

std::string list(const std::string& words) {
  const auto hosts = parse_host_list(words, "-H");
  return hosts ? text(*hosts) : "ERROR " + hosts.error().text;
}

std::string toml(const std::string& content) {
  const auto file = parse_hosts_toml(content, "hosts.toml");
  return file ? text(file->hosts) : "ERROR " + file.error().text;
}

std::string plain(const std::string& content) {
  const auto file = parse_hosts_text(content, "hosts.txt");
  return file ? text(file->hosts) : "ERROR " + file.error().text;
}

struct Row {
  std::string input;
  std::string expected;
};

// A folder of its own for each case that needs files.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/hvd-hosts-test-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Folder() { CHECK(std::system(("rm -rf " + path_).c_str()) == 0); }
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("lists of the command line") {
  const std::vector<Row> rows = {
      {"h1", "h1:1"},
      {"h1:4,user@h2:4,[fd00::2]:2,gpu[01-03]:8",
       "h1:4 user@h2:4 fd00::2:2 gpu01:8 gpu02:8 gpu03:8"},
      {" h1:4 ,\th2 ", "h1:4 h2:1"},
      {"h1:auto", "h1:auto"},
      {"w.1.foo.net,w.2.foo.net", "w.1.foo.net:1 w.2.foo.net:1"},
      {"[fe80::1%eth0]", "fe80::1%eth0:1"},
      {"u@dom@10.0.0.1:2", "u@dom@10.0.0.1:2"},
      {"n[8-11]", "n8:1 n9:1 n10:1 n11:1"},
      {"n[098-101]", "n098:1 n099:1 n100:1 n101:1"},
      {"r[1-2]n[01,03]x:2", "r1n01x:2 r1n03x:2 r2n01x:2 r2n03x:2"},
      {"[1-2]", "1:1 2:1"},
  };
  for (const Row& row : rows) CHECK_MESSAGE(list(row.input) == row.expected, row.input);
}

TEST_CASE("a6: IPv6 addresses stand in brackets, and what is ambiguous is refused") {
  CHECK(list("[fd00::2]:2,u@[fd00::3]") == "fd00::2:2 u@fd00::3:1");
  CHECK(list("[fe80::1%eth0]:4") == "fe80::1%eth0:4");
  CHECK(toml("[[host]]\nname = \"a\"\naddress = \"fd00::2\"") == "a(fd00::2):1");
  for (const std::string bad : {"fd00::2:2", "fd00::2", "[fd00::2", "[fd00::2]2", "[fd00::zz]:2"}) {
    CHECK_MESSAGE(list(bad).starts_with("ERROR -H"), bad);
  }
  // What stands behind a zero byte is no address.
  CHECK(list(std::string("[fd00::2\0;$(x)]:2", 17)).starts_with("ERROR -H"));
  CHECK(toml("[[host]]\nname = \"fd00::2\\u0000 -x\"").starts_with("ERROR hosts.toml:2:"));
}

TEST_CASE("a2: a name is the host, whole, whatever its case, and with its port") {
  CHECK(list("w.one.test:1,w.two.test:1") == "w.one.test:1 w.two.test:1");
  CHECK(host_identity("W.One.test", 0) == host_identity("w.one.test", 0));
  CHECK(host_identity("w.one.test", 0) != host_identity("w", 0));
  CHECK(host_identity("h1", 2202) != host_identity("h1", 2203));
  CHECK(host_identity("fd00:0::2", 0) == host_identity("FD00::2", 0));
}

TEST_CASE("hosts are chosen by name, range and label") {
  const auto parsed = parse_hosts_toml(
      "[[host]]\nname = \"gpu[01-04]\"\nlabels = { rack = \"a\" }\n"
      "[[host]]\nname = \"gpu[05-06]\"\nlabels = { rack = \"b\" }\n",
      "hosts.toml");
  REQUIRE(parsed.ok());
  const auto chosen = [&](const std::vector<std::string>& include,
                          const std::vector<std::string>& exclude) {
    std::vector<HostChoice> in, out;
    for (const std::string& word : include) in.push_back({word, "--include"});
    for (const std::string& word : exclude) out.push_back({word, "--exclude"});
    const auto hosts = choose_hosts(parsed->hosts, in, out);
    return hosts ? text(*hosts) : hosts.error().text;
  };
  CHECK(chosen({}, {}) == text(parsed->hosts));
  CHECK(chosen({"GPU03", "gpu01"}, {}) == "gpu01:1 gpu03:1");
  CHECK(chosen({"rack=b"}, {}) == "gpu05:1 gpu06:1");
  CHECK(chosen({"gpu[02-05]"}, {"rack=a"}) == "gpu05:1");
  CHECK(chosen({}, {"gpu[01-05]"}) == "gpu06:1");
  CHECK(chosen({}, {"gpu7"}) == "--exclude 'gpu7': no host is named 'gpu7': did you mean 'gpu01'?");
  CHECK(chosen({"rack=c"}, {}) == "--include 'rack=c': no host has this label");
  CHECK(chosen({"gpu[1-"}, {}).starts_with("--include 'gpu[1-': "));
  CHECK(chosen({"rack=a"}, {"rack=a"}) == "--exclude leaves no host");
}

TEST_CASE("bad lists: one sentence with the entry and what was expected") {
  const std::string names = "expected letters, digits, '.', '-' and '_'";
  const std::vector<Row> rows = {
      {"", "-H '': an entry is empty: expected hosts such as h1:4,h2:4"},
      {"h1,,h2", "-H 'h1,,h2': an entry is empty: expected hosts such as h1:4,h2:4"},
      {"h1:0", "-H 'h1:0': slots '0': expected a whole number from 1 to 65535, or auto"},
      {"h1:", "-H 'h1:': slots '': expected a whole number from 1 to 65535, or auto"},
      {"h1:-2", "-H 'h1:-2': slots '-2': expected a whole number from 1 to 65535, or auto"},
      {"h1:4.0", "-H 'h1:4.0': slots '4.0': expected a whole number from 1 to 65535, or auto"},
      {"h1:0x4", "-H 'h1:0x4': slots '0x4': expected a whole number from 1 to 65535, or auto"},
      {"h1:010", "-H 'h1:010': slots '010': expected a whole number from 1 to 65535, or auto"},
      {"h1:99999999999999999999",
       "-H 'h1:99999999999999999999': slots '99999999999999999999': expected a whole number from 1 "
       "to 65535, or auto"},
      {"fd00::2:2",
       "-H 'fd00::2:2': 'fd00::2:2' is ambiguous: expected an IPv6 address in brackets, such as "
       "[fd00::2]:2"},
      {"[fd00::zz]:2", "-H '[fd00::zz]:2': '[fd00::zz]' is not an IPv6 address"},
      {"-oProxyCommand=x",
       "-H '-oProxyCommand=x': host name '-oProxyCommand=x' begins with '-': " + names},
      {"u@-h", "-H 'u@-h': host name '-h' begins with '-': " + names},
      {"-u@h",
       "-H '-u@h': user '-u' begins with '-': expected letters, digits, '.', '-', '_', '+' and "
       "'@'"},
      {"@h", "-H '@h': user is empty: expected letters, digits, '.', '-', '_', '+' and '@'"},
      {"h;rm", "-H 'h;rm': host name 'h;rm' holds ';': " + names},
      {"$(x)", "-H '$(x)': host name '$(x)' holds '$': " + names},
      {"a b", "-H 'a b': host name 'a b' holds ' ': " + names},
      {"a\x1b[1m", "-H 'a\\x1b[1m': '[' without ']' in 'a\\x1b[1m'"},
      {"a\x07", "-H 'a\\x07': host name 'a\\x07' holds '\\x07': " + names},
      {"..", "-H '..': host name '..' begins with '.': " + names},
      {"n[3-1]", "-H 'n[3-1]': range '3-1' in 'n[3-1]' runs backwards"},
      {"n[1-]",
       "-H 'n[1-]': range '1-' in 'n[1-]' is not one: expected numbers such as [1-8], [01-16] or "
       "[1,3,5-7]"},
      {"n[1-999999]",
       "-H 'n[1-999999]': range '1-999999' in 'n[1-999999]' has more than 16384 hosts"},
      {"n[1-999][1-999]", "-H 'n[1-999][1-999]': '[1-999]' names more than 16384 hosts"},
  };
  for (const Row& row : rows) CHECK(list(row.input) == "ERROR " + row.expected);
}

TEST_CASE("a1: the same two hosts in six spellings of three syntaxes") {
  for (const std::string last : {"", "\n"}) {
    for (const std::string end : {"\n", "\r\n"}) {
      for (const std::string mark : {"", "\xef\xbb\xbf"}) {
        for (const std::string blank : {"", " \t "}) {
          const std::string finish = last.empty() ? "" : end;
          CHECK(plain(mark + "# two hosts" + end + end + "h1 slots=4" + blank + end + blank +
                      "h2:2" + blank + "# the last" + finish) == "h1:4 h2:2");
          CHECK(toml(mark + "# two hosts" + end + "[[host]]" + blank + end + "name = \"h1\"" + end +
                     "slots = 4" + blank + end + "[[host]]" + end + "name\t=\t\"h2\"" + end +
                     "slots = 2" + blank + finish) == "h1:4 h2:2");
        }
      }
    }
  }
  CHECK(list("h1:4,h2:2") == "h1:4 h2:2");
  CHECK(list("h1:4, h2:2 \r\n") == "h1:4 h2:2");
}

TEST_CASE("plain host files") {
  const std::vector<Row> rows = {
      {"localhost", "localhost:1"},
      {"a slots=2\nb:3\nuser@c\n[fd00::1]:2\n[fd00::2] slots = 4\n",
       "a:2 b:3 user@c:1 fd00::1:2 fd00::2:4"},
      {"n[1-2] slots=2", "n1:2 n2:2"},
      {"a slots=auto", "a:auto"},
      {"", "ERROR hosts.txt:1:1: no host is named here"},
      {"# none\n\n", "ERROR hosts.txt:1:1: no host is named here"},
      {"a lots=2",
       "ERROR hosts.txt:1:3: unknown word 'lots' after the host: did you mean 'slots'?"},
      {"a\n  b max_slotz=2",
       "ERROR hosts.txt:2:5: unknown word 'max_slotz' after the host: did you mean 'max_slots'?"},
      {"a max-slots", "ERROR hosts.txt:1:3: max-slots without a number: expected max-slots=4"},
      {"a max-slots=x",
       "ERROR hosts.txt:1:13: max_slots 'x': expected a whole number from 1 to 65535"},
      {"a max-slots=2 max_slots=2", "ERROR hosts.txt:1:15: max_slots are given twice"},
      {"a slots=4 max_slots=2", "ERROR hosts.txt:1:1: 4 slots are above the host's max_slots, 2"},
      {"a slots=0",
       "ERROR hosts.txt:1:9: slots '0': expected a whole number from 1 to 65535, or auto"},
      {"a slots", "ERROR hosts.txt:1:3: slots without a number: expected slots=4"},
      {"a:2 slots=2", "ERROR hosts.txt:1:5: slots are given twice"},
      {"a,b",
       "ERROR hosts.txt:1:1: host name 'a,b' holds ',': expected letters, digits, '.', '-' and "
       "'_'"},
      {"a\n\n b\nA slots=2",
       "ERROR hosts.txt:4:1: host 'A' is named twice, first at hosts.txt:1:1: expected each host "
       "once, with all of its slots"},
      {"fd00::2:2",
       "ERROR hosts.txt:1:1: 'fd00::2:2' is ambiguous: expected an IPv6 address in brackets, such "
       "as [fd00::2]:2"},
  };
  for (const Row& row : rows) CHECK(plain(row.input) == row.expected);
}

TEST_CASE("TOML host files") {
  const std::vector<Row> rows = {
      {"[defaults]\nuser = \"train\"\nslots = 8\n[[host]]\nname = \"gpu[01-02]\"\n[[host]]\n"
       "name = \"gpu99\"\naddress = \"fd00::99\"\nport = 2222\nspare = true\nslots = 2\n",
       "train@gpu01:8 train@gpu02:8 train@gpu99(fd00::99)#2222:2*"},
      {"[[host]]\nname = \"a\"\ngpus = [0, 2, \"GPU-8f2c\"]", "a:3"},
      {"[defaults]\nslots = 8\n[[host]]\nname = \"a\"\ngpus = [0, 2]", "a:2"},
      {"[defaults]\ngpus = [0, 1]\n[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\nslots = "
       "\"auto\"",
       "a:2 b:auto"},
      {"[[host]]\nname = \"a\"\n[defaults]\nport = 22", "a#22:1"},
      {"host = [{ name = \"a\" }, { name = \"b\", slots = 2 }]", "a:1 b:2"},
      {"[[host]]\nname = \"n[1-2]\"\naddress = \"10.0.0.[11-12]\"",
       "n1(10.0.0.11):1 n2(10.0.0.12):1"},
      {"[[host]]\nname = \"fd00::2\"\n[[host]]\nname = \"[fd00::3]\"", "fd00::2:1 fd00::3:1"},
      {"[[host]]\nname = \"localhost\"\nport = 2201\n[[host]]\nname = \"localhost\"\nport = 2202",
       "localhost#2201:1 localhost#2202:1"},
  };
  for (const Row& row : rows) CHECK(toml(row.input) == row.expected);
}

TEST_CASE("a4, a5: bad TOML host files: file, line and column, the text and what was expected") {
  const std::string whole = "expected a whole number from 1 to 65535";
  const std::vector<Row> rows = {
      {"[[host]]\nname = \"a\"\nlots = 8",
       "3:1: unknown key 'lots' in [[host]]: did you mean 'slots'?"},
      {"[defaults]\n  usr = \"x\"\n[[host]]\nname = \"a\"",
       "2:3: unknown key 'usr' in [defaults]: did you mean 'user'?"},
      {"[defaults]\nname = \"x\"",
       "2:1: unknown key 'name' in [defaults]: expected one of port, user, identity, slots, "
       "max-slots, gpus, env, workdir, labels, spare"},
      {"[[hosts]]\nname = \"a\"", "1:3: unknown table or key 'hosts': did you mean 'host'?"},
      {"[[host]]\nname = \"a\"\nslots = \"4\"",
       "3:9: slots is '4': expected a whole number from 1 to 65535, or \"auto\""},
      {"[[host]]\nname = \"a\"\nslots = 4.0",
       "3:9: slots expects a whole number from 1 to 65535, not a number with a fraction"},
      {"[[host]]\nname = \"a\"\nslots = -1", "3:9: slots is -1: " + whole},
      {"[[host]]\nname = \"a\"\nslots = 0", "3:9: slots is 0: " + whole},
      {"[[host]]\nname = 4", "2:8: name expects a string, such as \"text\", not an integer"},
      {"[[host]]\nslots = 4", "1:1: this [[host]] has no name: expected name = \"h1\""},
      {"[host]\nname = \"a\"", "1:1: host expects tables, each written [[host]], not a table"},
      {"[[host]]\nname = \"a\"\n\n[[host]]\nname = \"A\"",
       "4:1: host 'A' is named twice, first at hosts.toml:1:1: expected each host once, with all "
       "of "
       "its slots"},
      {"[[host]]\nname = \"n[1-3]\"\n[[host]]\nname = \"n2\"",
       "3:1: host 'n2' is named twice, first at hosts.toml:1:1: expected each host once, with all "
       "of its slots"},
      {"[[host]]\nname = \"-x\"",
       "2:8: host name '-x' begins with '-': expected letters, digits, '.', '-' and '_'"},
      {"[[host]]\nname = \"a:4\"",
       "2:8: host name 'a:4' holds ':': expected letters, digits, '.', '-' and '_'"},
      {"[[host]]\nname = \"a\"\nport = 70000",
       "3:8: port is 70000: expected a whole number from 1 to 65535"},
      {"[[host]]\nname = \"a\"\nuser = \"a b\"",
       "3:8: user 'a b' holds ' ': expected letters, digits, '.', '-', '_', '+' and '@'"},
      {"[[host]]\nname = \"a\"\ngpus = [0, 0]", "3:12: gpus names '0' twice"},
      {"[[host]]\nname = \"a\"\ngpus = [-1]",
       "3:9: an entry of gpus is not a device: expected an index such as 0 or an identifier such "
       "as "
       "\"GPU-8f2c\""},
      {"[[host]]\nname = \"a\"\ngpus = 2",
       "3:8: gpus expects an array of devices, such as [0, 2], not an integer"},
      {"[[host]]\nname = \"a\"\nenv = { A = 1 }",
       "3:13: A expects a string, such as \"text\", not an integer"},
      {"[[host]]\nname = \"a\"\nenv = { \"A=B\" = \"1\" }",
       "3:9: the name of a variable cannot be 'A=B': expected one without blanks, quotes, '=' "
       "and control characters"},
      {"[[host]]\nname = \"a\"\nworkdir = \"run\"",
       "3:11: workdir 'run' is not absolute: expected a path that begins with '/'"},
      {"[[host]]\nname = \"a\"\nspare = \"yes\"", "3:9: spare expects true or false, not a string"},
      {"[[host]]\nname = \"n[1-2]\"\naddress = \"10.0.0.1\"",
       "3:11: address '10.0.0.1' stands for 1 addresses and name 'n[1-2]' for 2 hosts: expected as "
       "many"},
      {"[[host]]\nname = \"a\"\nlocal = true",
       "3:1: unknown key 'local' in [[host]]: expected one of name, address, port, user, "
       "identity, slots, max-slots, gpus, env, workdir, labels, spare"},
      {"[job]\nnp = 4", "1:1: no host is named here: expected a [[host]] table"},
      {"", "1:1: no host is named here: expected a [[host]] table"},
      {"job = 1", "1:7: job expects a table, written [job], not an integer"},
      {"[job]\nnp = 2000-01-01",
       "2:6: np: expected a string, a number, true or false, or an array of strings, not a date or "
       "time"},
  };
  for (const Row& row : rows) CHECK(toml(row.input) == "ERROR hosts.toml:" + row.expected);
}

TEST_CASE("text that is not TOML is an error with line and column") {
  for (const std::string content :
       {"[[host]]\nname = \"a\"\nname = \"b\"", "[[host]]\nname = \"a\"\nslots = ",
        "[[host]]\nname = \"a\"\nslots = 100000000000000000000", "h1 slots=4\n\n\n",
        "[[host]]\nname = \"a\x80\"\n\n", "\n\n[[host]\nname = 1", "\n\n[job]]"}) {
    const std::string error = toml(content);
    CHECK_MESSAGE(error.starts_with("ERROR hosts.toml:"), error);
    CHECK_MESSAGE(error.find(": not valid TOML: ") != std::string::npos, error);
    CHECK_MESSAGE(error.find('\n') == std::string::npos, error);
  }
  CHECK(toml("a = fal\x1bse").find('\x1b') == std::string::npos);
  CHECK(toml("\n[host\n\n[\n").starts_with("ERROR hosts.toml:2:"));
  CHECK(toml("\n[defaults]\n[.a]\n") ==
        "ERROR hosts.toml:3:1: not valid TOML: expected a table's name or a key here");
  CHECK(toml("[") ==
        "ERROR hosts.toml:1:2: not valid TOML: Error while parsing table header: encountered "
        "end-of-file");
  CHECK(toml("[[host]]\nname = \"a\"\nname = \"b\"").starts_with("ERROR hosts.toml:3:"));
}

TEST_CASE("host keys, and defaults that a host adds to or replaces") {
  const auto file = parse_hosts_toml(
      "[defaults]\nenv = { B = \"default\", A = \"1\" }\nworkdir = \"/data\"\n"
      "labels = { rack = \"a\" }\nidentity = \"~/.ssh/train\"\n"
      "[[host]]\nname = \"h\"\nenv = { B = \"own\", C = \"3\" }\ngpus = [3, \"MIG-GPU-1/2/0\"]\n"
      "[[host]]\nname = \"i\"\nworkdir = \"/other\"\n",
      "f");
  REQUIRE(file.ok());
  REQUIRE(file->hosts.size() == 2);
  const Host& h = file->hosts[0];
  CHECK(h.env == Variables{{"B", "own"}, {"A", "1"}, {"C", "3"}});
  CHECK(h.gpus == std::vector<std::string>{"3", "MIG-GPU-1/2/0"});
  CHECK(h.slots == 2);
  CHECK(h.slots_given);
  CHECK(h.workdir == "/data");
  CHECK(h.labels == Variables{{"rack", "a"}});
  CHECK(h.identity == "~/.ssh/train");
  CHECK(h.source == "f:6:1");
  CHECK(file->hosts[1].workdir == "/other");
  CHECK(file->hosts[1].env == Variables{{"B", "default"}, {"A", "1"}});
  CHECK_FALSE(file->hosts[1].slots_given);
}

TEST_CASE("the [job] table keeps the order of the file, types and places") {
  const auto file = parse_hosts_toml(
      "[[host]]\nname = \"h\"\n[job]\nnp = 16\ncheckpoint-dir = \"/c\"\noversubscribe = true\n"
      "grace = 0.5\nx = [\"A=1\", \"B\"]\n",
      "f");
  REQUIRE(file.ok());
  REQUIRE(file->job.size() == 5);
  CHECK(file->job[0].name == "np");
  CHECK(file->job[0].values == std::vector<std::string>{"16"});
  CHECK(file->job[0].type == Setting::Type::whole);
  CHECK(file->job[0].source == "f:4:1");
  CHECK(file->job[1].type == Setting::Type::text);
  CHECK(file->job[2].values == std::vector<std::string>{"true"});
  CHECK(file->job[3].values == std::vector<std::string>{"0.500000000"});
  CHECK(file->job[4].values == std::vector<std::string>{"A=1", "B"});
  CHECK(file->job[4].source == "f:8:1");
}

TEST_CASE("files: what is no host file is named and not waited for") {
  const Folder folder;
  const auto error = [](const std::string& path) {
    const auto file = parse_host_file(path);
    return file ? "read: " + text(file->hosts) : file.error().text;
  };
  CHECK(error(folder.path() + "/none.toml") ==
        "cannot read " + folder.path() + "/none.toml: No such file or directory");
  CHECK(error(folder.path()) == "cannot read " + folder.path() + ": it is a directory, not a file");
  CHECK(error("/dev/zero") == "cannot read /dev/zero: it is not a regular file");
  const std::string fifo = folder.path() + "/fifo.toml";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(error(fifo) == "cannot read " + fifo + ": it is not a regular file");
  const std::string big = folder.file("big.toml", std::string((4u << 20) + 1, '#'));
  CHECK(error(big) == "cannot read " + big + ": it holds more than 4194304 bytes");

  CHECK(error(folder.file("a.toml", "[[host]]\nname = \"a\"")) == "read: a:1");
  CHECK(error(folder.file("hosts", "# x\n[[host]]\nname = \"a\"")) == "read: a:1");
  CHECK(error(folder.file("hosts2", "[defaults]\nslots = 2\n[[host]]\nname = \"a\"")) ==
        "read: a:2");
  CHECK(error(folder.file("hosts3", "host = [{name = \"a\"}]")) == "read: a:1");
  CHECK(error(folder.file("hosts4", "[fd00::2]:2\n")) == "read: fd00::2:2");
  CHECK(error(folder.file("hosts5", "[fd00::2]\n")) == "read: fd00::2:1");
  CHECK(error(folder.file("hosts6", "[1-2]\n")) == "read: 1:1 2:1");
  CHECK(error(folder.file("hosts7", "a slots=2\n")) == "read: a:2");
}

TEST_CASE("a file or a list") {
  const Folder folder;
  folder.file("gpu", "h1\n");
  REQUIRE(chdir(folder.path().c_str()) == 0);
  CHECK(kind_of_host_word("./x") == HostWord::file);
  CHECK(kind_of_host_word("hosts.toml") == HostWord::file);
  CHECK(kind_of_host_word("hosts.txt") == HostWord::file);
  CHECK(kind_of_host_word("my.hosts") == HostWord::file);
  CHECK(kind_of_host_word("h1:4") == HostWord::list);
  CHECK(kind_of_host_word("h1,h2") == HostWord::list);
  CHECK(kind_of_host_word("h1") == HostWord::list);
  CHECK(kind_of_host_word("gpu") == HostWord::file_by_chance);
  REQUIRE(chdir("/") == 0);
}

TEST_CASE("which hosts are this machine") {
  Machine machine;
  machine.hostname = "Node1.example";
  machine.user = "me";
  struct LocalRow {
    std::string host;
    bool local;
  };
  const std::vector<LocalRow> rows = {
      {"name = \"localhost\"", true},
      {"name = \"LOCALHOST\"", true},
      {"name = \"127.0.0.1\"", true},
      {"name = \"::1\"", true},
      {"name = \"0:0::1\"", true},
      {"name = \"node1.example\"", true},
      {"name = \"node1\"", false},
      {"name = \"127.0.0.2\"", false},
      {"name = \"localhost\"\nuser = \"me\"", true},
      {"name = \"localhost\"\nuser = \"train\"", false},
      {"name = \"localhost\"\nport = 22", false},
      {"name = \"localhost\"\naddress = \"127.0.0.1\"", true},
      {"name = \"localhost\"\naddress = \"10.0.0.1\"", false},
      {"name = \"other\"\naddress = \"127.0.0.1\"", false},
  };
  for (const LocalRow& row : rows) {
    auto file = parse_hosts_toml("[[host]]\n" + row.host, "f");
    REQUIRE(file.ok());
    mark_local(file->hosts, machine);
    CHECK_MESSAGE(file->hosts[0].local == row.local, row.host);
  }
  CHECK(this_machine().cores >= 1);
  CHECK_FALSE(this_machine().hostname.empty());
}

TEST_CASE("deep and dotted TOML is refused before it can exhaust the stack") {
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i) dotted += ".a";
  CHECK(toml(dotted + " = 1") == "ERROR hosts.toml:1:66: a key with more than 32 dots");
  CHECK(toml("\n[" + dotted + "]") == "ERROR hosts.toml:2:67: a key with more than 32 dots");
  CHECK(toml("x = " + std::string(1'000'000, '[')).starts_with("ERROR hosts.toml:1:"));
  // The deepest that passes the bound on dots: 32 dots a line inside as many arrays as toml++
  // takes.
  std::string deep;
  const std::string key = "{" + dotted.substr(0, 65) + "=[\n";
  for (int i = 0; i < 100'000; ++i) deep += key;
  CHECK(toml("x = [\n" + deep).starts_with("ERROR hosts.toml:"));
  // Dots in strings and comments are only text.
  const std::string dots(200, '.');
  CHECK(toml("# " + dots + "\n[[host]]\nname = \"a\"\nenv = { A = \"" + dots + "\", B = '" + dots +
             "', C = \"\"\"\n" + dots + "\\\"\"\"\", D = '''\n" + dots + "''' }") == "a:1");
}

TEST_CASE("no text brings the parsers down, and each error has its place") {
  const std::string good =
      "[defaults]\nuser = \"train\"\nslots = 8\n[[host]]\nname = \"gpu[01-04]\"\ngpus = [0, "
      "\"GPU-1\"]\nenv = { A = \"1\" }\n[[host]]\nname = \"b\"\naddress = \"fd00::1\"\n[job]\nnp = "
      "4\n";
  const std::string words = "user@gpu[01-04]:8,[fd00::2]:2,h1 slots=4 #\n";
  const std::string parts = "[]{}\"'=.,:#@-\n\r\t \\0129azAZ\x80\xff$";
  std::mt19937 random(7);
  const auto mutated = [&](std::string text) {
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 5);
      } else {
        text.insert(at, 1, parts[random() % parts.size()]);
      }
      if (text.empty()) text = "x";
    }
    return text;
  };
  for (int i = 0; i < 1000; ++i) {
    const std::string broken = toml(mutated(good));
    if (broken.starts_with("ERROR")) CHECK(broken.starts_with("ERROR hosts.toml:"));
    const std::string line = plain(mutated(words));
    if (line.starts_with("ERROR")) CHECK(line.starts_with("ERROR hosts.txt:"));
    const std::string hosts = list(mutated(words));
    if (hosts.starts_with("ERROR")) CHECK(hosts.starts_with("ERROR -H "));
  }
}

TEST_CASE("the nearest known word") {
  const std::vector<std::string> known = {"slots", "spare", "user", "checkpoint-dir"};
  CHECK(nearest("lots", known) == "slots");
  CHECK(nearest("Slots", known) == "slots");
  CHECK(nearest("checkpoint", known) == "checkpoint-dir");
  CHECK(nearest("zzz", known).empty());
  CHECK(nearest("", known).empty());
  CHECK(nearest(std::string(100'000, 'a'), known).empty());
}
