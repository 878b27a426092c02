"""SGLang plugin for the GPU host: drafter windows that hold.

SGLang finds it through the entry point group ``sglang.srt.plugins``, which only the plugin's own wheel
declares (built by the console, see ``dflash_backend.plugin_install``). Importing this package needs neither
torch nor sglang.

* ``windows``  what each draft layer should attend to, from the drafter's config
* ``sources``  fingerprints of the SGLang functions that are hooked or relied upon, without importing them
* ``entry``    the entry point: decides what to hook on this release, or why DFLASH must not start
* ``hooks``    the hooks
* ``report``   the evidence: one log line and one entry in /server_info

Environment: ``DFLASH_SGLANG_WINDOWS=off`` leaves SGLang's own windows in place (and says so).
"""

__version__ = "0.1.0"
