-- The rest of the release of the common mutex: others wait in its line, or it was not held.

local lock, state, line, waiters, _, token = unpack(KEYS)
local hint, life, field, publish, base, wake, passes, in_line = unpack(ARGV)
if gone == 1 then
  passes = tonumber(passes)
  return hand_over(lock, state, line, waiters, token, hint, life, publish, base, wake, passes, claim)
end
if in_line == '1' then
  leave(line, waiters, field, publish, wake)
end
if type(gone) == 'table' then
  -- A string of another layout is there now: our lock is gone. Any other error is for the caller.
  return string.sub(gone.err, 1, 9) == 'WRONGTYPE' and 0 or gone
end
return 0
