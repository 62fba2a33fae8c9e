-- Asks holders to release their locks: records it for holders that subscribe later, and notifies
-- those that are subscribed.
-- KEYS: asked
-- ARGV: publish, how long to keep it, and the field of each holder

for i = 3, #ARGV do
  redis.call('hset', KEYS[1], ARGV[i], '1')
  redis.call('pexpire', KEYS[1], ARGV[2])
  redis.call(ARGV[1], KEYS[1] .. ':' .. ARGV[i], '0')
end
return #ARGV - 2
