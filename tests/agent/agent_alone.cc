// `hvdlaunch agent` without the rest of hvdlaunch.
#include "supervisor/agent/agent.h"

int main(int argc, char** argv) {
  return hvd::agent_main({argv + 1, argv + argc});
}
