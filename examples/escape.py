"""Tries to get out. Run it with: fumehood run --require sealed examples/escape.py"""

import os
import socket


def read_passwords():
    with open("/etc/shadow"):
        return "the file opens"


def look_into_home_directories():
    personal = {".bashrc", ".profile", ".ssh", ".config", ".bash_history", "Documents"}
    homes = [
        "/root",
        *(f"{top}/{name}" for top in ("/home", "/Users") if os.path.isdir(top) for name in os.listdir(top)),
    ]
    found = [f"{home}/{name}" for home in homes if os.access(home, os.R_OK) for name in personal & {*os.listdir(home)}]
    return found or held("nobody's files are there")


def see_other_processes():
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) > 1000]
    others += [pid for pid in os.listdir("/proc") if pid.isdigit()][20:]
    return f"{len(others)} of them" if others else held("only its own processes are there")


def reach_the_network():
    return socket.create_connection(("192.0.2.1", 53), timeout=2).getpeername()


def write_to_the_system():
    if os.access("/usr", os.W_OK):  # asked, not done: nothing of the host's is to change if this runs unsealed
        return "/usr can be written"
    return held("nothing there can be written")


def read_the_environment():
    secrets = [name for name in os.environ if "TOKEN" in name or "KEY" in name or name.startswith("DEMO_")]
    return secrets or held("no variable of the host's")


def become_root_of_a_new_namespace():
    if not hasattr(os, "unshare"):
        held("this Python has no os.unshare")
    os.unshare(os.CLONE_NEWUSER)
    return "a new user namespace"


def make_a_raw_socket():
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)


def held(why):
    raise PermissionError(0, why)


through = 0
for attempt in (
    read_passwords,
    look_into_home_directories,
    see_other_processes,
    reach_the_network,
    write_to_the_system,
    read_the_environment,
    become_root_of_a_new_namespace,
    make_a_raw_socket,
):
    name = attempt.__name__.replace("_", " ")
    try:
        got = attempt()
    except OSError as error:
        print(f"  held         {name}: {error.strerror or error}")
    else:
        through += 1
        print(f"  GOT THROUGH  {name}: {got}")
raise SystemExit(min(through, 100))
