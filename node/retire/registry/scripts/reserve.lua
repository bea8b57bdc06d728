--[[
Set an owner's reservation of the tenant's pin quota: grow, shrink or renew. Ended ones are dropped first.

KEYS[1] meta  KEYS[2] pins: hash owner -> blocks
KEYS[3] pin ends: sorted set owner -> end of its lease in milliseconds
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] owner  ARGV[4] blocks  ARGV[5] length of the lease in milliseconds
ARGV[6] the key of the quota (blocks; absent: unlimited). It is read only, and it is not among KEYS because
        EVALSHA asks for the right to write each of those, which a node does not have on its quota.
Returns {blocks, blocks left in the quota or '' when unlimited, blocks reserved above the quota}.
Errors: NEEDREGISTER tenant, TERMMISMATCH, QUOTAEXCEEDED <blocks the owner could still add>; what the owner
held stays as it was. Holding no more than before is never refused, even after the quota was lowered.
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
local now = now_ms()
local pinned = expire_pins(KEYS[1], KEYS[2], KEYS[3], now)
local own = tonumber(redis.call('HGET', KEYS[2], ARGV[3]) or '0')
local blocks = tonumber(ARGV[4])
local quota = tonumber(redis.call('GET', ARGV[6]) or nil)
if quota and blocks > own and pinned - own + blocks > quota then
  return refuse('QUOTAEXCEEDED ' .. int(math.max(0, quota - pinned)))
end
pinned = pinned - own + blocks
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[3], int(now + tonumber(ARGV[5])), ARGV[3])
redis.call('HSET', KEYS[1], 'pinned', int(pinned))
return {
  ARGV[4],
  quota and int(math.max(0, quota - pinned)) or '',
  int(quota and math.max(0, pinned - quota) or 0),
}
