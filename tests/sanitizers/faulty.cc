// faulty FAULT: a program with the fault that it is told to have, for the tests of the tests.
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <string>

int main(int count, char** words) {
  const std::string fault = count == 2 ? words[1] : "";
  if (fault == "leak") return new int[10] == nullptr;
  if (fault == "forked_leak") {
    if (fork() == 0) _exit(new int[10] == nullptr);
    wait(nullptr);
    return 1;
  }
  if (fault == "overflow") return INT_MAX - 10 + 10 * count;
  if (fault == "address") {
    const std::string* gone = new std::string(fault);
    delete gone;
    return gone->size() == 0;
  }
  std::fputs("faulty: no such fault\n", stderr);
  return 0;
}
