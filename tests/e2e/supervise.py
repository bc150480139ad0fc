"""supervise.py FD COMMAND...: runs a command as a child subreaper, so that everything it leaves
behind, double forked or not, stays a descendant of this process and is reaped here.

Writes "pid N" and, at the command's end, "code N" (as a shell gives it) to FD, one a line. Ends when
no descendant is left.
"""

import ctypes
import os
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36


def main():
    report, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("supervise.py: prctl failed")
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        os.close(report)
        os.execvp(command[0], command)
    os.write(report, b"pid %d\n" % pid)
    # A reader of the command's output must not wait for this process.
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    while True:
        try:
            ended, status = os.wait()
        except ChildProcessError:
            return
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            os.write(report, b"code %d\n" % (code if code >= 0 else 128 - code))


main()
