-- A mutex that has an owner, and is not fair: other claims of the owner share it.
-- KEYS: lock, state, queue, claims [, Redisson's token]
-- ARGV: hint, life, ttl, claim, record, the text for the queue, the owner
-- Answers as the common mutex.

local call = redis.call
local lock, state, queue, claims, token = unpack(KEYS)
local hint, life, ttl, claim, record, rest, owner = unpack(ARGV)
local join, publish, lease, place = read_queue(rest)
local wake, waiters = channels(queue), beside_queue(queue, 'lockkeeper_waiters')

local function extend(key, time)
  if call('pttl', key) < tonumber(time) then
    call('pexpire', key, time)
  end
end

local found, left, holder = kind_of(lock, state)
if found ~= 'none' and found ~= 'mutex' then
  return {-1, found}
end
if holder == owner then
  -- Another hold, or our own grant, whose reply was lost, or that was handed to us.
  extend(lock, ttl)
  if call('hexists', claims, claim) == 0 then
    call('hincrby', lock, owner, '1')
    call('hset', claims, claim, 'hold')
  end
  extend(claims, ttl)
  call('hset', state, 'held', record)
  leave(queue, waiters, claim, publish, wake)
  local fence = token and call('get', token) or call('hget', state, 'fence')
  return {1, tonumber(fence) or mint(state, token, hint, life)}
end
if found == 'none' and is_turn(queue, waiters, claim, publish, wake) then
  call('hset', lock, owner, '1')
  call('pexpire', lock, ttl)
  call('hdel', waiters, claim)
  count_owner(state, claim, owner, ttl)
  call('hset', state, 'held', record)
  extend(state, life)
  return {1, mint(state, token, hint, life)}
end
local ahead = join ~= '0' and stay(queue, waiters, claim, place, lease, join == '2')
return wait_for(left, holder, ahead, state, wish, publish)
