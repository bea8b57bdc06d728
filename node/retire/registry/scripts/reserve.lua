--[[
Set an owner's reservation of the tenant's pin quota: grow, shrink or renew. Ended ones are dropped first.

KEYS[1] meta  KEYS[2] quota: blocks, absent when unlimited  KEYS[3] pins: hash owner -> blocks
KEYS[4] pin ends: sorted set owner -> end of its lease in milliseconds
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] owner  ARGV[4] blocks  ARGV[5] length of the lease in milliseconds
Returns {blocks, blocks left in the quota or '' when unlimited}.
Errors: NEEDREGISTER tenant, TERMMISMATCH, QUOTAEXCEEDED <blocks the owner could still add>; what the owner
held stays as it was. Holding no more than before is never refused, even after the quota was lowered.
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
local now = now_ms()
local pinned = expire_pins(KEYS[1], KEYS[3], KEYS[4], now)
local own = tonumber(redis.call('HGET', KEYS[3], ARGV[3]) or '0')
local blocks = tonumber(ARGV[4])
local quota = tonumber(redis.call('GET', KEYS[2]) or nil)
if quota and blocks > own and pinned - own + blocks > quota then
  return refuse('QUOTAEXCEEDED ' .. int(math.max(0, quota - pinned)))
end
pinned = pinned - own + blocks
redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[4], int(now + tonumber(ARGV[5])), ARGV[3])
redis.call('HSET', KEYS[1], 'pinned', int(pinned))
return { ARGV[4], quota and int(math.max(0, quota - pinned)) or '' }
