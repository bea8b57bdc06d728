--[[
Read the whole tenant, at one point in its stream.

KEYS[1] meta  KEYS[2] scopes  KEYS[3] joins  KEYS[4] quota  KEYS[5] pins  KEYS[6] pin ends
Returns {{term, incarnation, sequence, tail, quota or ''}, {scope, record, ...}, {join, ...},
{owner, blocks, lease left in milliseconds, ...}}. Ended reservations are left out.
Errors: NEEDREGISTER tenant
]]
local meta = redis.call('HMGET', KEYS[1], 'term', 'incarnation', 'sequence', 'tail')
if not meta[1] then
  return refuse('NEEDREGISTER tenant')
end
local now, pins = now_ms(), {}
local ends = redis.call('ZRANGE', KEYS[6], '(' .. int(now), '+inf', 'BYSCORE', 'WITHSCORES')
for at = 1, #ends, 2 do
  pins[#pins + 1] = ends[at]
  pins[#pins + 1] = redis.call('HGET', KEYS[5], ends[at])
  pins[#pins + 1] = int(tonumber(ends[at + 1]) - now)
end
return {
  { meta[1], meta[2], meta[3], meta[4] or '0-0', redis.call('GET', KEYS[4]) or '' },
  redis.call('HGETALL', KEYS[2]),
  redis.call('ZRANGE', KEYS[3], 0, -1),
  pins,
}
