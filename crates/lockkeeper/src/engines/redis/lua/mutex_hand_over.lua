-- The rest of the release of the common mutex: others wait in its queue, or it was not held.

local lock, queue, _, token = unpack(KEYS)
local hint, field, publish, base, passes, in_queue, life = unpack(ARGV)
local wake, state = channels(queue), beside_queue(queue, 'lockkeeper')
local waiters = beside_queue(queue, 'lockkeeper_waiters')
if gone == 1 then
  passes = tonumber(passes)
  return hand_over(lock, state, queue, waiters, token, hint, life, publish, base, wake, passes, first)
end
if in_queue == '1' then
  leave(queue, waiters, field, publish, wake)
end
if type(gone) == 'table' then
  -- A string of another layout is there now: our lock is gone. Any other error is for the caller.
  return string.sub(gone.err, 1, 9) == 'WRONGTYPE' and 0 or gone
end
return 0
