-- Releases whatever a claim has at one server of a quorum.
-- ARGV: field, token, channel, publish, stem
-- Returns 1 if it held the lock until now.

local field, token, channel, publish = unpack(ARGV)
if call('get', wish) == token then
  call('del', wish)
end
local wrong, mode = conflict()
if wrong or not mode or not drop(field, mode) then
  return 0
end
call(publish, channel, '1')
return 1
