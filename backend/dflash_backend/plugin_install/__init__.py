"""The SGLang plugin on a host, over SSH: status, install, uninstall.

status = await plugin_install.status(link)
result = await plugin_install.install(link)      # result.changed, result.status
result = await plugin_install.uninstall(link)
"""

from dflash_backend.plugin_install.service import Changed, PluginStatus, install, status, uninstall

__all__ = ["Changed", "PluginStatus", "install", "status", "uninstall"]
