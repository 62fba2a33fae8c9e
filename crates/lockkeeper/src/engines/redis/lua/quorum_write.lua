-- The exclusive side at one server of a quorum.
-- ARGV: hint, life, ttl, field, record, fence, token, how long a wish lasts, stem. The fence is
-- that of a writer that a majority has granted and that acquires this server later; a new writer
-- has none.
-- Returns the new fence, or {1, the counter, 0}, or {0, whether a wish was left}, or {-1, what is
-- there instead}.

local hint, life, ttl, field, record, fence, token, patience = unpack(ARGV)
local wrong, mode = conflict()
if wrong then
  return wrong
end
if mode and call('hexists', lock, field) == 0 then
  -- Readers that arrive now let the writer go first. Behind another writer there is no order.
  if mode == 'read' and patience ~= '0' then
    call('set', wish, token, 'px', patience)
    return {0, 1}
  end
  return {0, 0}
end
if call('get', wish) == token then
  call('del', wish)
end

call('hset', lock, 'mode', 'write', field, 1)
call('pexpire', lock, ttl)
call('hset', state, 'held', record)
local counter = tonumber(call('hget', state, 'fence') or 0)
if fence ~= '' or (mode and counter > 0) then
  counter = math.max(counter, tonumber(fence) or 0)
  set_fence(counter, life)
  return {1, counter, 0}
end
counter = counter + 1
if counter < tonumber(hint) then
  -- New, lost, or unused for long: continue from the clock.
  counter = math.max(counter, clock())
end
set_fence(counter, life)
return counter
