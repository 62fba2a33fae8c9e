-- The request to a holder to give way, if there is one: who asks, and why.
-- KEYS: asked
-- ARGV: field

return redis.call('hget', KEYS[1], ARGV[1])
