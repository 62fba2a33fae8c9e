-- Shared by the scripts with a queue; they are appended to this text.
--
-- The queue is a list of entries, the first of which is next. `timeouts` has the times after which
-- Redisson drops a waiter, `beats` our own heartbeats: a waiter of ours that is silent for longer
-- than its short lease, by the server's clock, is evicted by the next client. Each waiter is woken
-- on its own channel.

-- If several servers may have the lock: which server this is, and in which configuration.
local hint = table.remove(ARGV, 1)
local origin = not tonumber(hint) and hint

local lock, state, queue, timeouts, beats, claims, who, permits, slots = unpack(KEYS)
local ttl, entry, claim, record = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local ordered, join = ARGV[5] == '1', ARGV[6] == '1'
local lease, patience, life = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local publish, wake_channel, base_channel, stem = ARGV[10], ARGV[11], ARGV[12], ARGV[13]

local clock = redis.call('time')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)

-- Lua formats large numbers with an exponent, which loses digits.
local function text(number)
  return string.format('%.0f', number)
end

local function mint()
  local fence = math.max(redis.call('hincrby', state, 'fence', 1), micros)
  redis.call('hset', state, 'fence', text(fence))
  if origin then
    redis.call('hset', state, 'origin', origin)
  end
  redis.call('pexpire', state, life)
  return fence
end

-- The last fence that was granted.
local function last_fence()
  return tonumber(redis.call('hget', state, 'fence') or mint())
end

-- The last fence that was granted, for holders that share it. If another server granted it, or this
-- one before another took over from it, later fences may have been lost: the clock is beyond all of
-- them.
local function shared_fence()
  if origin and redis.call('hget', state, 'origin') ~= origin then
    return mint()
  end
  return last_fence()
end

local function extend(key, time)
  if redis.call('pttl', key) < time then
    redis.call('pexpire', key, text(time))
  end
end

local function forget(waiter)
  redis.call('lrem', queue, 0, waiter)
  redis.call('zrem', timeouts, waiter)
  redis.call('zrem', beats, waiter)
end

-- The first waiter that is alive.
local function first()
  while true do
    local head = redis.call('lindex', queue, 0)
    if not head then
      return nil
    end
    local limit = redis.call('zscore', beats, head) or redis.call('zscore', timeouts, head)
    if not limit or tonumber(limit) > now then
      return head
    end
    forget(head)
    redis.call('hdel', who, head)
  end
end

local function my_turn()
  local head = ordered and first()
  return not head or head == entry
end

-- Redisson counts a waiter's timeout from the one ahead of it, and a waiter that leaves subtracts
-- its share from those behind it. Ours are judged by their heartbeats, so a run of our waiters has
-- one share: its first adds it, its last removes it. A long queue of ours costs no more calls than
-- a short one.
local function is_ours(waiter)
  return waiter and redis.call('zscore', beats, waiter)
end

local function leave_queue()
  local at = redis.call('lpos', queue, entry)
  if not at then
    return false
  end
  local before = at > 0 and redis.call('lindex', queue, at - 1)
  local alone = not is_ours(before) and not is_ours(redis.call('lindex', queue, at + 1))
  -- A full server refuses a script whose first write needs memory. This one needs none.
  forget(entry)
  if alone then
    for _, waiter in ipairs(redis.call('lrange', queue, at, -1)) do
      if redis.call('zscore', timeouts, waiter) then
        redis.call('zincrby', timeouts, -patience, waiter)
      end
    end
  end
  return true, at == 0
end

local function wake()
  local head = first()
  if head then
    redis.call(publish, wake_channel .. head, '0')
  end
  return head
end

local function line_up()
  if not redis.call('lpos', queue, entry) then
    local last = redis.call('lindex', queue, -1)
    local before = last and redis.call('zscore', timeouts, last)
    local base = math.max(0, before and before - now or redis.call('pttl', lock))
    local wait = is_ours(last) and math.max(base, patience) or base + patience
    redis.call('rpush', queue, entry)
    redis.call('zadd', timeouts, text(now + wait), entry)
    redis.call('hset', who, entry, record)
  else
    -- A full server refuses a script whose first write needs memory: for an existing waiter it
    -- needs none.
    redis.call('pexpire', queue, text(2 * patience))
    if tonumber(redis.call('zscore', timeouts, entry) or 0) < now + lease then
      redis.call('zadd', timeouts, text(now + patience), entry)
    end
  end
  redis.call('zadd', beats, text(now + lease), entry)
  -- A queue whose waiters all died does not stay forever.
  for _, key in ipairs({queue, timeouts, beats, who}) do
    extend(key, 2 * patience)
  end
end

local function busy(left)
  if join then
    line_up()
  end
  return {0, left, first() == entry and 1 or 0}
end

-- Forgets that an owner was asked to give way: its next hold was not. A later one can have the same entry.
local function forget_question()
  if claim ~= '' then
    redis.pcall('hdel', 'lockkeeper_asked' .. string.sub(state, #'lockkeeper' + 1), entry)
  end
end

-- Records which of its owner's holds this claim is. Remains of an earlier hold do not count.
local function count_claim(hold, is_first)
  if claim == '' then
    return false
  end
  if is_first then
    redis.call('del', claims)
  end
  redis.call('hset', claims, claim, hold)
  extend(claims, ttl)
  -- A hold that expired had no release that could forget it.
  if redis.call('hget', lock, entry) == '1' then
    forget_question()
  end
  return true
end

-- How many records of dead holders may stay until a client that finds the lock free sweeps them.
local UNSWEPT_RECORDS = 16

-- Removes the records of holders that died when the lock expired: all other records are of waiters
-- with a heartbeat.
local function sweep_records()
  local noted = redis.call('hlen', who)
  if noted <= UNSWEPT_RECORDS or noted <= #redis.call('zrange', beats, 0, -1) then
    return
  end
  local records = redis.call('hgetall', who)
  for i = 1, #records, 2 do
    if not redis.call('zscore', beats, records[i]) then
      redis.call('hdel', who, records[i])
    end
  end
end

-- An exclusive holder is recorded in the state, as by the common mutex.
local function admitted_alone(fence)
  leave_queue()
  redis.call('hdel', who, entry)
  redis.call('hset', state, 'held', record)
  extend(state, life)
  return {1, fence}
end

local function admitted(answer)
  leave_queue()
  redis.call('hset', who, entry, record)
  extend(who, ttl)
  extend(state, life)
  return answer
end
