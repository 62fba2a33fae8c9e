# Keys, and behind -- commands: what the definition of the options does not know.
complete -c lockkeeper -n "not contains -- -- (commandline -opc)" -f -a "(lockkeeper __keys (commandline -opc)[2..] (commandline -ct) 2>/dev/null)"
complete -c lockkeeper -n "contains -- -- (commandline -opc)" -x -a "(__fish_complete_subcommand --fcs-skip=(math (contains -i -- -- (commandline -opc)) - 1))"
