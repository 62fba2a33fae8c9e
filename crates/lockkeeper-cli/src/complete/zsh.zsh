# Keys: what the definition of the options does not know.
(( $+functions[_lockkeeper_keys] )) ||
_lockkeeper_keys() {
    local -a keys
    keys=("${(@f)$(lockkeeper __keys "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -- $keys
}

_lockkeeper() {