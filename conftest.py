"""pytester, for the tests of the plugin; it is only honoured in the root conftest."""

pytest_plugins = ["pytester"]
