-- Takes a lock away from all holders; the waiters stay, and the first of them is woken.
-- KEYS: lock, state, queue, timeouts, beats, claims, who, permits, slots, the other queue,
-- the mutex queue, waiters
-- ARGV: stem, publish, then the channels of mutexes and of read-write locks, then the two stems of
-- the channels of waiters, for each queue, then the channel of layout=string, then 1 if locks are
-- strings, then what the channels of waiters in the queue start with.
-- Returns 1, or 0 if nothing is there, or {-1, what is there} if that is no lock.

local lock, state, queue, _, beats, claims, who, permits, slots, other_queue = unpack(KEYS)
local mutex_queue, waiters = KEYS[11], KEYS[12]
local stem, publish = ARGV[1], ARGV[2]
local kind, _, holder = kind_of(lock, state, stem)
if kind == 'none' then
  return 0
end
if kind == 'string' then
  if not is_string_lock(lock, state, ARGV[8] == '1') then
    return {-1, kind}
  end
elseif kind ~= 'mutex' and kind ~= 'read' and kind ~= 'write' and kind ~= 'semaphore' then
  return {-1, kind}
else
  local fields = redis.call('hgetall', lock)
  for i = 1, #fields, 2 do
    redis.call('hdel', who, fields[i])
    local holds = (kind == 'read' or kind == 'write') and tonumber(fields[i + 1]) or 0
    for n = holds, 1, -1 do
      redis.call('del', stem .. ':' .. fields[i] .. ':rwlock_timeout:' .. n)
    end
  end
end
if kind == 'mutex' then
  -- Nobody uses a lock that is kept, so its keeper must not believe in it until the next renewal.
  wish(state, holder, publish)
end
redis.call('del', lock)
-- While a slot moves, it may be on the other server.
redis.pcall('del', beside(state, 'lockkeeper_asked'))
redis.call('del', claims)
redis.call('del', permits)
redis.call('del', slots)
redis.call(publish, ARGV[3], '0')
redis.call(publish, ARGV[4], '1')
redis.call(publish, ARGV[7], '0')
for i, each in ipairs({queue, other_queue}) do
  local head = redis.call('lindex', each, 0)
  if head then
    redis.call(publish, ARGV[4 + i] .. head, '0')
  end
end
wake_first(mutex_queue, waiters, publish, ARGV[9], milliseconds(redis.call('time')))
return 1
