-- The shared side at one server of a quorum.
-- ARGV: life, ttl, token, record, fence, stem. The fence is that of a reader that a majority has
-- granted and that acquires this server later; a new reader has none.
-- Returns {1, the counter, 0}, or {1, 0, the clock} if there is no counter yet, or {0, 0}, or {-1,
-- what is there instead}.

local life, ttl, token, record, fence = unpack(ARGV)
local wrong, mode = conflict()
if wrong then
  return wrong
end
local is_in = mode == 'read' and left(token, call('hget', lock, token)) > 0
if mode == 'write' or (fence == '' and not is_in and call('exists', wish) == 1) then
  return {0, 0}
end

local counter = tonumber(call('hget', state, 'fence') or 0)
if fence ~= '' and counter ~= tonumber(fence) then
  -- The counter may change only if no reader holds with it, and only upwards.
  if counter > 0 and (counter > tonumber(fence) or others(token) > 0) then
    drop(token, mode)
    return {0, 0}
  end
  counter = tonumber(fence)
  set_fence(counter, life)
end

call('hset', lock, 'mode', 'read', token, 1)
call('set', timeout_key(token, 1), 1, 'px', ttl)
call('hset', who, token, record)
for _, key in ipairs({lock, who}) do
  if call('pttl', key) < tonumber(ttl) then
    call('pexpire', key, ttl)
  end
end
if counter == 0 then
  return {1, 0, clock()}
end
call('pexpire', state, life)
return {1, counter, 0}
