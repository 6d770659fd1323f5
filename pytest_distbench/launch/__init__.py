"""Starting process groups: one contract (:mod:`contract`), two launchers, one supervisor for both."""
