"""The commands there are, in the order of the help; their modules are imported when they are used."""

COMMANDS: dict[str, str] = {
    "demo": "an embedded cluster on this machine, then the screens",
    "status": "the servers as they are now",
    "hosts": "machines: list, check, trust, forget",
    "profiles": "saved ways to launch: list, show, validate, diff, new",
    "plan": "the exact command of a profile on a server, and what stands against it; changes nothing",
    "apply": "switch a server to a profile",
    "start": "launch a server and wait until it is ready",
    "stop": "end a server that this console started",
    "restart": "stop a server and launch it again",
    "adopt": "make a foreign server ours",
    "logs": "the log of a server's run",
    "audit": "which windows the drafter declares, and what its layers really attend to",
    "bench": "measure servers: run, list, show, export",
    "plugin": "the SGLang plugin on a host: install, status, uninstall",
    "record": "keep what the console sees in a file",
    "replay": "watch a recording again",
    "inspect": "read a captured log, metrics or server-info file offline",
    "info": "where files are, and an example of a configuration",
    "engine": "the reference engine on this machine: serve, verify",
}
