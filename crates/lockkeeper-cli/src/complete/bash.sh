# Keys, and behind -- commands: what the definition of the options does not know.
_lockkeeper_and_keys() {
    local cur=${COMP_WORDS[COMP_CWORD]} line=${COMP_LINE:0:COMP_POINT} words i key
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        if declare -F _command_offset > /dev/null; then
            _command_offset $((i + 1))
        elif ((COMP_CWORD == i + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "$cur")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        fi
        return 0
    done
    _lockkeeper "$@"
    if ((COMP_CWORD > 1)) && [[ $cur != -* ]]; then
        # Not COMP_WORDS: those are cut at every colon, as in a URL.
        read -ra words <<< "$line"
        [[ $line != *[[:space:]] ]] || words+=('')
        while IFS= read -r key; do
            COMPREPLY+=("$(printf '%q' "$key")")
        done < <("$1" __keys "${words[@]:1}" 2> /dev/null)
        if declare -F __ltrim_colon_completions > /dev/null; then
            __ltrim_colon_completions "${words[-1]}"
        fi
    fi
}

complete -F _lockkeeper_and_keys -o nosort -o bashdefault -o default lockkeeper
